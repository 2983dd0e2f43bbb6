"""Calls that only a cache server answers: those of tools and people, never of a job.

They take what they need beside `client.transports.http.HttpTransport`, and are patient where a job would not be.
"""

from __future__ import annotations

import hashlib
import http
import http.client
import json
import time
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

from client import entry_stream
from client.errors import Denied, FormatError, Refused, Unreachable, WireError
from client.explaining import Near
from client.names import check_digest, check_output, check_project
from client.plans import MAX_PLAN
from client.transports import answers
from client.transports.limits import DEFAULT_LIMITS
from client.transports.session import Session
from client.wire import Entry

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence

    from client.names import Kind
    from client.signing.statements import Promotion
    from client.transports.limits import Limits

    Named = tuple[Kind, str]

PROBE_KEY = hashlib.sha256(b"neff-cache doctor").hexdigest()
"""A key that no document has: what is asked for by it is never there, and never missed."""
MAX_LOOKUP = 1024
"""Keys of one look-up: its answer holds an entry of a few kilobytes for each."""
_PAGE = 1000
_JSON = {"Content-Type": "application/json"}
_UNPROCESSABLE = 422
_COPYING = 600.0
"""Seconds that a server may take to copy the outputs of an entry."""


class Ping(NamedTuple):
    """An answer: seconds that it took, and the server's time (seconds since the epoch) if it said so."""

    seconds: float
    server_time: float | None


class Promoted(NamedTuple):
    """What became of a promotion: ``promoted``, ``present`` (it stood there), or ``refused`` with name and sentence."""

    state: str
    name: str = ""
    detail: str = ""


class ServerCalls:
    """The cache server at ``url`` and one project in it; raises `client.errors.ConfigurationError` at once.

    Failure contract of every method as in `client.transports.base.Transport`. Safe to use from several threads.
    """

    def __init__(
        self,
        url: str,
        project: str,
        environ: Mapping[str, str],
        *,
        limits: Limits = DEFAULT_LIMITS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._base = f"/v1/{check_project(project)}"
        self._project = project
        self._patience = limits.stall
        self._monotonic = monotonic
        self._session = Session(url, environ, limits, monotonic)
        self.address = self._session.address

    def ping(self) -> Ping:
        """Ask for as little as there is."""
        begin = self._monotonic()
        with self._session.get("/healthz") as got:
            if got is None:
                raise Unreachable(f"{self.address} answers, but not as a cache server")
            got.answer.read_small(64)
            date = got.answer.header("Date")
        seconds = self._monotonic() - begin
        try:
            return Ping(seconds, parsedate_to_datetime(date).timestamp())
        except ValueError:
            return Ping(seconds, None)

    def may_read(self) -> bool:
        """Return whether we may read entries."""
        try:
            with self._session.get(f"{self._base}/revoked") as got:
                if got is not None:
                    answers.read_json(got.answer, answers.MAX_MANY)
        except Denied:
            return False
        return True

    def may_write(self, kind: Kind, key: str) -> bool:
        """Return whether we may publish entries of ``kind``; publishes nothing, because what it offers is no entry."""
        try:
            self._post("PUT", f"{self._base}/{kind.value}/entries/{key}", {})
        except Denied:
            return False
        except Refused as error:
            if error.status != _UNPROCESSABLE:
                raise
        return True

    def name(self) -> str:
        """Return what the server calls us: the least that needs a host name, a token and nothing else."""
        with self._session.get("/v1/-/whoami") as got:
            return "" if got is None else str(answers.read_json(got.answer).get("name", ""))

    def is_open_to_all(self) -> bool:
        """Return whether the server lets in a token that is empty; earlier ones did where theirs was never set."""
        with self._session.bare("/v1/-/whoami", {"Authorization": "Bearer"}) as answer:
            return answer.status == http.HTTPStatus.OK

    def is_ready(self) -> None:
        """Ask whether the server's own store and database serve; raises `client.errors.Refused` if not."""
        with self._session.get("/readyz") as got:
            if got is not None:  # a proxy may hide it
                got.answer.read_small(64)

    def no_room(self) -> str:
        """Return why nothing can be published for want of room, "" if there is some, or the server does not say."""
        with self._session.get(f"{self._base}/quota") as got:
            value = {} if got is None else answers.read_json(got.answer)
        room = value.get("room") if isinstance(value, dict) else None
        if not isinstance(room, dict):
            return ""
        if room.get("quota") is False:
            return f"the quota of project {self._project} is used up"
        return "the server's store is full" if room.get("store") is False else ""

    def lookup(self, keys: Sequence[Named]) -> dict[Named, Entry]:
        """Return the entries of ``keys`` that stand there; at most `MAX_LOOKUP` keys."""
        value = self._post("POST", f"{self._base}/lookup", {"keys": _keys(keys)})
        wanted = set(keys)
        found: dict[Named, Entry] = {}
        with _checked(self.address):
            for raw in value["found"]:
                entry = Entry.from_json(raw)
                if entry.project != self._project or (entry.kind, entry.key) not in wanted:
                    raise WireError("an entry that was not asked for")
                found[entry.kind, entry.key] = entry
        return found

    def keys(self, kind: Kind, *, compiler_version: str) -> Iterator[str]:
        """Yield the keys of the entries of a kind that one compiler built, page by page."""
        asked = {"kind": kind.value, "compiler_version": compiler_version, "limit": str(_PAGE)}
        while True:
            with self._session.get(f"{self._base}/entries?{urlencode(asked)}") as got:
                value = {} if got is None else answers.read_json(got.answer, answers.MAX_MANY)
            with _checked(self.address):
                yield from [check_digest(item["key"]) for item in value["entries"]]
                if value.get("next") is None:
                    return
                asked["cursor"] = str(value["next"])

    def fetch(
        self, entries: Sequence[Entry], names: Collection[str] | None = None
    ) -> Generator[tuple[Entry, dict[str, bytes]]]:
        """Yield the entries, as they stand there, with the plain bytes of the outputs ``names`` (None: all of them).

        In one request. What is gone, damaged or not what was asked for is left out: ask for it singly. ``close`` the
        generator if it is not read to its end.
        """
        asked: dict[str, Any] = {"keys": _keys([(entry.kind, entry.key) for entry in entries])}
        if names is not None:
            asked["outputs"] = sorted(names)
        path, body = f"{self._base}/fetch", json.dumps(asked).encode()
        wanted = {(entry.kind, entry.key) for entry in entries}
        with self._session.send("POST", path, body, _JSON, answer_seconds=self._patience) as answer:
            members = entry_stream.Members(answer.begin_body())
            try:
                while (member := members.next()) is not None:
                    entry = self._entry(member, wanted)
                    outputs = _outputs(members, entry, names)
                    if outputs is not None:
                        yield entry, outputs
            except FormatError as error:
                raise http.client.HTTPException(str(error)) from error
            answer.response.read(1)  # the end of the chunks: only then the connection may be used again

    def _entry(self, member: entry_stream.Member, wanted: set[Named]) -> Entry:
        """Read an entry from a stream, and take it off what is still wanted."""
        entry = entry_stream.read_entry(member)
        if entry.project != self._project or (entry.kind, entry.key) not in wanted:
            raise FormatError("an entry that was not asked for")
        wanted.discard((entry.kind, entry.key))
        return entry

    def plan(self, name: str) -> bytes | None:
        """Return a stored plan, or None."""
        with self._session.get(f"{self._base}/plans/{check_output(name)}") as got:
            if got is None:
                return None
            got.answer.begin_body()  # a plan may take as long as it moves
            return got.answer.read_small(MAX_PLAN)

    def explain(self, document: Mapping[str, Any], *, without: Sequence[str] = (), limit: int = 3) -> list[Near]:
        """Return the stored entries that are nearest to a key document."""
        asked = {"key_document": dict(document), "without": list(without), "limit": limit}
        value = self._post("POST", f"{self._base}/explain", asked)
        with _checked(self.address):
            return [Near.from_json(near) for near in value["nearest"]]

    def promote(self, record: Promotion) -> Promoted:
        """Let an entry into our project from the one that the record names. Copying it may take its time."""
        asked = {"from": record.source, "records": [record.to_json()]}
        value = self._post("POST", f"{self._base}/promotions", asked, patience=_COPYING)
        with _checked(self.address):
            (result,) = value["results"]
            return Promoted(str(result["state"]), str(result.get("name", "")), str(result.get("detail", "")))

    def close(self) -> None:
        """Drop idle connections."""
        self._session.close()

    def _post(self, method: str, path: str, value: Any, *, patience: float | None = None) -> Any:
        body = json.dumps(value).encode()
        seconds = self._patience if patience is None else patience
        with self._session.send(method, path, body, _JSON, answer_seconds=seconds) as answer:
            return answers.read_json(answer, answers.MAX_MANY)


def _outputs(members: entry_stream.Members, entry: Entry, names: Collection[str] | None) -> dict[str, bytes] | None:
    """Read an entry's outputs from the stream; None if one is not what the entry says, but the stream goes on."""
    found: dict[str, bytes] = {}
    sound = True
    for output in entry.outputs:
        if names is not None and output.name not in names:
            continue
        member = members.expect(str(entry_stream.name_of(entry, output)))
        try:
            found[output.name] = member.read_plain(output, output.encoding)
        except FormatError:
            if member.left:
                raise
            sound = False
    return found if sound else None


def _keys(keys: Sequence[Named]) -> list[dict[str, str]]:
    return [{"kind": kind.value, "key": key} for kind, key in keys]


@contextmanager
def _checked(address: str) -> Iterator[None]:
    try:
        yield
    except (WireError, KeyError, TypeError, ValueError) as error:
        raise Unreachable(f"{address} gave an answer that breaks the contract: {error}") from error
