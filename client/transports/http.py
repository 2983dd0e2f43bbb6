"""A shared cache behind HTTP: the calls of version 1, on the standard library's `http.client`.

Measured against a local server: a kept connection and ``readinto`` reach 0.84 to 0.95 of a local copy with SHA-256, 1.3
to 1.7 times the usual client libraries, which take three to ten times as long to import inside other people's jobs.
"""

from __future__ import annotations

import http
import json
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast, get_args

from client.errors import LeaseLost, Refused, Unreachable, WireError
from client.names import MAIN_OUTPUT, check_digest, check_kind, check_project
from client.transports import answers, patience, publishing, wanted
from client.transports.base import Fetched, Published, TooSlow, Verdict, Withdrawn
from client.transports.limits import DEFAULT_LIMITS
from client.transports.session import Session
from client.wire import Entry, Output, Ready, lease_answer_from_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from client.errors import Failure
    from client.names import Kind
    from client.transports.limits import Limits
    from client.transports.session import Got
    from client.wire import Granted, Holder, LeaseAnswer

_UPLOADS = 3
_MAX_REVOKED = 2 << 20
_MOST_REVOKED = 8192
"""Withdrawn entries that are read, and their bytes: each is looked for on this node while the job runs."""
_JSON = {"Content-Type": "application/json"}


class HttpTransport:
    """`client.transports.base.Transport` over the cache server at ``url``; raises `ConfigurationError` at once.

    ``environ`` names proxies, certificates and the token; ``monotonic`` is the clock that ``limits`` are measured by.
    """

    heeds_patience = True

    def __init__(
        self,
        url: str,
        project: str,
        environ: Mapping[str, str],
        *,
        limits: Limits = DEFAULT_LIMITS,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._project = check_project(project)
        self._limits = limits
        self._monotonic = monotonic
        self._session = Session(url, environ, limits, monotonic, sleep=sleep)

    @property
    def address(self) -> str:
        """The server's address as it was given; it never holds a password."""
        return self._session.address

    def fetch(self, kind: Kind, key: str) -> Fetched | None:
        """See `client.transports.base.Transport.fetch`."""
        with self._session.get(self._path(kind, "artifacts", key), encoded=True) as got:
            if got is None:
                return None
            if got.entry is not None:
                entry = self._check(got.entry, kind, key)
                output = entry.output()
                if output is None:
                    raise Unreachable(f"{self.address} answered with an entry that has no {MAIN_OUTPUT}")
                wanted.check(entry)
                return Fetched(entry, self._read_program(got, entry, output))
        # The entry was too large for a header: one round trip more, then the bytes by their digest.
        whole = self.entry(kind, key)
        if whole is not None:
            wanted.check(whole)
        neff = None if whole is None else self.read_output(whole, MAIN_OUTPUT)
        return None if whole is None or neff is None else Fetched(whole, neff)

    def entry(self, kind: Kind, key: str) -> Entry | None:
        """See `client.transports.base.Transport.entry`."""
        with self._session.get(self._path(kind, "entries", key)) as got:
            value = None if got is None else answers.read_json(got.answer, answers.MAX_ENTRY_JSON)
        return None if value is None else self._entry(value, kind, key)

    def read_output(self, entry: Entry, name: str) -> bytes | None:
        """See `client.transports.base.Transport.read_output`."""
        output = entry.output(name)
        if output is None:
            return None
        path = f"{self._path(entry.kind, 'entries', entry.key)}/blobs/{output.sha256}"
        with self._session.get(path, encoded=True) as got:
            return None if got is None else answers.read_output(got.answer, entry, output, stored=got.elsewhere)

    def publish(self, entry: Entry, outputs: Mapping[str, bytes], lease: Granted | None) -> Published:
        """See `client.transports.base.Transport.publish`. Ends within the limits for publishing."""
        publishing.check_entry(entry, outputs, self._project)
        if lease is None:  # whoever did not wait may well be late: that is cheaper to ask than to upload
            stored = self.entry(entry.kind, entry.key)
            if stored is not None and self.is_whole(stored):
                return Published(stored, created=False)
        until = self._monotonic() + (self._limits.without_lease if lease is None else self._limits.upload)
        prepared = [publishing.as_stored(entry, output, outputs[output.name]) for output in entry.outputs]
        uploads = 0
        while True:
            stored_outputs = [self._upload(entry, output, data, until) for output, data in prepared]
            uploads += 1
            try:
                return self._put_entry(replace(entry, outputs=tuple(stored_outputs)), until)
            except Refused as error:
                if error.name != "blob_missing" or uploads == _UPLOADS:
                    raise

    def acquire(
        self,
        kind: Kind,
        key: str,
        holder: Holder,
        *,
        wait_seconds: float = 0,
        retry_failed: bool = False,
        seen_generation: int | None = None,
        may_publish: bool = True,
    ) -> LeaseAnswer:
        """See `client.transports.base.Transport.acquire`."""
        asked: dict[str, Any] = {
            "holder": holder.to_json(),
            "wait_seconds": wait_seconds,
            "retry_failed": retry_failed,
            "may_publish": may_publish,
        }
        if seen_generation is not None:
            asked["seen_generation"] = seen_generation
        value = self._call("POST", self._path(kind, "leases", key), asked, wait_seconds)
        with _broken_if_wrong(self.address):
            answer = lease_answer_from_json(value)
        if isinstance(answer, Ready):
            self._check(answer.entry, kind, key)
        return answer

    def renew(self, kind: Kind, key: str, lease: Granted) -> None:
        """See `client.transports.base.Transport.renew`."""
        self._call("PATCH", self._path(kind, "leases", key), {"token": lease.token})

    def release(self, kind: Kind, key: str, lease: Granted, failure: Failure | None = None) -> None:
        """See `client.transports.base.Transport.release`."""
        given: dict[str, Any] = {"token": lease.token}
        if failure is not None:
            given["failure"] = failure.to_json()
        with suppress(LeaseLost):
            self._call("POST", self._path(kind, "leases", key) + "/release", given)

    def suspect(self, kind: Kind, key: str, sha256: str) -> Verdict:
        """See `client.transports.base.Transport.suspect`. Waits as long as the server may take to hash an output."""
        path = self._path(kind, "entries", key) + "/suspect"
        value = self._call("POST", path, {"sha256": sha256}, self._limits.stall)
        state = value.get("state") if isinstance(value, dict) else None
        for verdict in get_args(Verdict):
            if state == verdict:
                return cast("Verdict", verdict)
        raise Unreachable(f"{self.address} gave no verdict that is known here: {state!r}")

    def is_whole(self, entry: Entry) -> bool:
        """See `client.transports.base.Transport.is_whole`."""
        for output in entry.outputs:
            path = f"{self._path(entry.kind, 'entries', entry.key)}/blobs/{output.sha256}"
            with self._session.get(path, method="HEAD") as got:
                is_there = got is not None
            if not is_there and self.suspect(entry.kind, entry.key, output.sha256) != "sound":
                return False
        return True

    def revoked(self) -> frozenset[Withdrawn]:
        """See `client.transports.base.Transport.revoked`."""
        with self._session.get(f"/v1/{self._project}/revoked") as got:
            value = {"revoked": []} if got is None else answers.read_json(got.answer, _MAX_REVOKED)
        with _broken_if_wrong(self.address):
            if len(value["revoked"]) > _MOST_REVOKED:
                raise WireError(f"more than {_MOST_REVOKED} withdrawn entries")
            return frozenset(
                Withdrawn(check_kind(item["kind"]), check_digest(item["key"]), check_digest(item["sha256"], "digest"))
                for item in value["revoked"]
            )

    def report(self, summary: Mapping[str, Any]) -> None:
        """See `client.transports.base.Reporting.report`."""
        self._call("POST", f"/v1/{self._project}/reports", summary)

    def close(self) -> None:
        """Drop idle connections; the transport may be used again afterwards."""
        self._session.close()

    def _path(self, kind: Kind, what: str, key: str) -> str:
        return f"/v1/{self._project}/{kind.value}/{what}/{check_digest(key)}"

    def _read_program(self, got: Got, entry: Entry, output: Output) -> bytes:
        """Read ``model.neff``; raises `TooSlow` if the caller is better off with its compiler."""
        caller = patience.current()
        pace = caller.pace(self._limits, output, entry.compile_seconds)
        try:
            return answers.read_output(got.answer, entry, output, stored=got.elsewhere, pace=pace)
        except TimeoutError as error:
            if caller.is_too_slow(pace, self._limits):
                raise TooSlow(
                    f"{entry.kind}/{entry.key} comes from {self.address} more slowly than it compiles "
                    f"({output.size} bytes, {entry.compile_seconds:.1f} s)"
                ) from error
            raise

    def _upload(self, entry: Entry, output: Output, data: bytes, until: float) -> Output:
        """Upload an output; return it as it is stored: another writer's zstd may have made another frame before."""
        path = f"{self._path(entry.kind, 'entries', entry.key)}/blobs/{output.sha256}"
        headers = {"Content-Encoding": "zstd"} if output.encoding == "zstd" else {}
        with self._session.send("PUT", path, data, headers, answer_seconds=self._limits.stall, until=until) as answer:
            value = answers.read_json(answer)
        if entry.signature is not None or output.encoding == "identity":
            return output
        with _broken_if_wrong(self.address):
            return Output.from_json({**output.to_json(), "stored_size": value["stored_size"]})

    def _put_entry(self, entry: Entry, until: float) -> Published:
        path, body = self._path(entry.kind, "entries", entry.key), json.dumps(entry.to_json()).encode()
        with self._session.send("PUT", path, body, _JSON, answer_seconds=self._limits.stall, until=until) as answer:
            if answer.status == http.HTTPStatus.CREATED:
                answers.read_json(answer)
                return Published(entry, created=True)
            stored = answers.read_json(answer, answers.MAX_ENTRY_JSON)
            return Published(self._entry(stored, entry.kind, entry.key), created=False)

    def _call(self, method: str, path: str, value: Any, wait_seconds: float = 0) -> Any:
        """Send JSON; return the answer's JSON, or None if it has no body. ``wait_seconds`` is the server's own time."""
        body = json.dumps(value).encode()
        with self._session.send(method, path, body, _JSON, answer_seconds=wait_seconds + self._limits.answer) as answer:
            if answer.status == http.HTTPStatus.NO_CONTENT:
                return answer.read_small(0) or None
            return answers.read_json(answer, answers.MAX_ENTRY_JSON)

    def _entry(self, value: Any, kind: Kind, key: str) -> Entry:
        with _broken_if_wrong(self.address):
            return self._check(Entry.from_json(value), kind, key)

    def _check(self, entry: Entry, kind: Kind, key: str) -> Entry:
        if (entry.project, entry.kind, entry.key) != (self._project, kind, key):
            raise Unreachable(f"{self.address} answered with an entry that was not asked for")
        return entry


@contextmanager
def _broken_if_wrong(address: str) -> Iterator[None]:
    """Turn JSON that breaks the contract into the error for a broken answer."""
    try:
        yield
    except (WireError, KeyError, TypeError, AttributeError) as error:
        raise Unreachable(f"{address} gave an answer that breaks the contract: {error}") from error
