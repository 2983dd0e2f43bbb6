"""A shared cache in memory, with leases as the protocol has them, and faults on demand."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from client.errors import LeaseLost, Refused
from client.names import MAIN_OUTPUT
from client.transports.base import Damaged, Fetched, Published
from client.wire import Failed, Granted, NotGranted, Ready, Wait

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from client.errors import Failure
    from client.names import Kind
    from client.transports.base import Verdict, Withdrawn
    from client.wire import Entry, Holder, LeaseAnswer


@dataclass
class _Lease:
    generation: int = 0
    holder: Holder | None = None
    token: str = ""
    ends: float = 0.0
    failure: Failure | None = None
    failed_at: float = 0.0
    failed_on: str = ""
    failures: list[float] = field(default_factory=list)


class SharedStore:
    """`client.transports.base.Transport` over dictionaries.

    ``faults[method]`` is called before the method does anything: it may raise, sleep or return. ``calls`` counts.
    """

    address = "memory:test"

    def __init__(self, ttl: float = 30.0) -> None:
        self.ttl = ttl
        self.entries: dict[tuple[str, str], Entry] = {}
        self.outputs: dict[str, bytes] = {}
        self.calls: Counter[str] = Counter()
        self.faults: dict[str, Callable[[], Any]] = {}
        self.withdrawn: set[Withdrawn] = set()
        self.leases: dict[tuple[str, str], _Lease] = {}
        self.asked: list[dict[str, Any]] = []
        self.may_lease = True
        self._changed = threading.Condition()

    def _begin(self, method: str) -> None:
        self.calls[method] += 1
        fault = self.faults.get(method)
        if fault is not None:
            fault()

    def damage(self, kind: Kind, key: str) -> None:
        output = self.entries[kind, key].output()
        assert output is not None
        self.outputs[output.sha256] = b"not what was stored"

    def fetch(self, kind: Kind, key: str) -> Fetched | None:
        self._begin("fetch")
        entry = self.entries.get((kind, key))
        if entry is None:
            return None
        data = self.read_output(entry, MAIN_OUTPUT)
        return None if data is None else Fetched(entry, data)

    def entry(self, kind: Kind, key: str) -> Entry | None:
        self._begin("entry")
        return self.entries.get((kind, key))

    def read_output(self, entry: Entry, name: str) -> bytes | None:
        output = entry.output(name)
        data = None if output is None else self.outputs.get(output.sha256)
        if output is None or data is None:
            return None
        found = hashlib.sha256(data).hexdigest()
        if found != output.sha256:
            raise Damaged(entry, output.sha256, found)
        return data

    def publish(self, entry: Entry, outputs: Mapping[str, bytes], lease: Granted | None) -> Published:
        self._begin("publish")
        with self._changed:
            stands = self.entries.get((entry.kind, entry.key))
            if stands is None:
                for output in entry.outputs:
                    assert hashlib.sha256(outputs[output.name]).hexdigest() == output.sha256
                    self.outputs[output.sha256] = outputs[output.name]
                self.entries[entry.kind, entry.key] = entry
            self.leases.setdefault((entry.kind, entry.key), _Lease()).holder = None
            self._changed.notify_all()
        return Published(stands or entry, created=stands is None)

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
        self.asked.append({"holder": holder, "wait_seconds": wait_seconds, "seen_generation": seen_generation})
        self._begin("acquire")
        deadline = time.monotonic() + wait_seconds
        with self._changed:
            while True:
                answer = self._answer(
                    kind,
                    key,
                    holder,
                    retry_failed=retry_failed,
                    seen_generation=seen_generation,
                    may_publish=may_publish,
                )
                left = deadline - time.monotonic()
                if not isinstance(answer, Wait) or left <= 0:
                    return answer
                seen_generation = answer.generation
                self._changed.wait(min(left, answer.expires_in))

    def _answer(  # noqa: PLR0911 - one for each state of a lease
        self,
        kind: Kind,
        key: str,
        holder: Holder,
        *,
        retry_failed: bool,
        seen_generation: int | None,
        may_publish: bool,
    ) -> LeaseAnswer:
        now = time.monotonic()
        lease = self.leases.setdefault((kind, key), _Lease())
        if (kind, key) in self.entries:
            return Ready(self.entries[kind, key])
        if lease.holder is not None and lease.ends > now:
            return Wait(lease.generation, lease.holder, "2026-11-29T23:00:00Z", lease.ends - now)
        if lease.failure is not None and not retry_failed:
            age = now - lease.failed_at
            if seen_generation == lease.generation and age < 600:
                return Failed(lease.failure, 0.0, host=lease.failed_on)
            if lease.failure.failure_class == "diagnosis" and age < 300:
                return Failed(lease.failure, 300 - age, replayed=True, host=lease.failed_on)
            if len(lease.failures) >= 3 and age < 60:
                return Failed(lease.failure, 60 - age, replayed=True, host=lease.failed_on)
        if not may_publish or not self.may_lease:
            return NotGranted()
        lease.generation += 1
        lease.holder, lease.token, lease.ends = holder, f"token-{lease.generation}", now + self.ttl
        return Granted(lease.token, lease.generation, self.ttl)

    def renew(self, kind: Kind, key: str, lease: Granted) -> None:
        self._begin("renew")
        with self._changed:
            held = self.leases[kind, key]
            if held.holder is None or held.token != lease.token or held.ends <= time.monotonic():
                raise LeaseLost("the lease is not yours")
            held.ends = time.monotonic() + self.ttl

    def release(self, kind: Kind, key: str, lease: Granted, failure: Failure | None = None) -> None:
        self._begin("release")
        with self._changed:
            held = self.leases[kind, key]
            if held.holder is None or held.token != lease.token:
                return
            if failure is not None:
                held.failure, held.failed_at, held.failed_on = failure, time.monotonic(), held.holder.host
                if failure.failure_class != "diagnosis":
                    held.failures.append(held.failed_at)
            held.holder = None
            self._changed.notify_all()

    def suspect(self, kind: Kind, key: str, sha256: str) -> Verdict:
        self._begin("suspect")
        with self._changed:
            entry = self.entries.get((kind, key))
            if entry is None:
                return "absent"
            if sha256 not in {output.sha256 for output in entry.outputs}:
                raise Refused("no such output", status=422)
            if hashlib.sha256(self.outputs[sha256]).hexdigest() == sha256:
                return "sound"
            del self.entries[kind, key]
            return "quarantined"

    def revoked(self) -> frozenset[Withdrawn]:
        self._begin("revoked")
        return frozenset(self.withdrawn)

    def close(self) -> None:
        self._begin("close")
