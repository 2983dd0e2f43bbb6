"""What client and server say to each other: entries, outputs, leases, failures, as frozen dataclasses.

Every ``from_json`` checks what it reads, because the other party may be older, newer, broken or hostile, and raises
`client.errors.WireError` with one sentence. Unknown members are ignored, so that a newer party can add some.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, cast, get_args

from client.errors import Failure, WireError
from client.names import MAIN_OUTPUT, Kind, check_digest, check_kind, check_output, check_project

Json = dict[str, Any]
Encoding: TypeAlias = Literal["identity", "zstd"]

ENTRY_SCHEMA = 1
ENTRY_HEADER = "Neff-Entry"
MAX_ENTRY_HEADER = 4096
MAX_PROMOTIONS = 16
MAX_INTEGER = (1 << 53) - 1
"""The largest integer that all readers of JSON agree about (RFC 8259, section 6), and that databases hold."""
LONGEST_LEASE = 3600.0
"""Seconds: the longest time to live that a server gives a lease."""
LONGEST_MEMORY = 600.0
"""Seconds for which anybody remembers that a compile failed."""


def _object(value: Any, what: str) -> Json:
    if not isinstance(value, dict):
        raise WireError(f"{what} is a JSON object, not {type(value).__name__}")
    return value


def _get(value: Json, name: str, types: type | tuple[type, ...], what: str) -> Any:
    found = value.get(name)
    # bool is an int in Python but never in these documents
    if not isinstance(found, types) or (isinstance(found, bool) and bool not in (types, *_tuple(types))):
        raise WireError(f"{what}: {name!r} is missing or of the wrong type")
    return found


def _tuple(types: type | tuple[type, ...]) -> tuple[type, ...]:
    return types if isinstance(types, tuple) else (types,)


def _size(value: Json, name: str, what: str) -> int:
    found = cast("int", _get(value, name, int, what))
    if not 0 <= found <= MAX_INTEGER:
        raise WireError(f"{what}: {name!r} is negative or too large")
    return found


def _lasts(value: Json, name: str, what: str, longest: float) -> float:
    """Return a time in seconds that another party names; one that no honest one would says nothing, and is 0."""
    found = _number(value, name, what)
    return found if found <= longest else 0.0


def _number(value: Json, name: str, what: str) -> float:
    found = _get(value, name, (int, float), what)
    # compared before it is converted: no float holds every integer
    if not 0 <= found <= MAX_INTEGER:
        raise WireError(f"{what}: {name!r} is no duration in seconds")
    return float(found)


@dataclass(frozen=True, slots=True)
class Output:
    """One file of an entry. ``sha256`` and ``size`` (bytes) are of the plain bytes, ``stored_size`` as stored."""

    name: str
    sha256: str
    size: int
    encoding: Encoding = "identity"
    stored_size: int = -1

    def __post_init__(self) -> None:
        """Take the plain size as the stored one where nothing is encoded."""
        if self.stored_size < 0:
            object.__setattr__(self, "stored_size", self.size)

    def to_json(self) -> Json:
        """Return the output as plain JSON values."""
        return {
            "name": self.name,
            "sha256": self.sha256,
            "size": self.size,
            "encoding": self.encoding,
            "stored_size": self.stored_size,
        }

    @classmethod
    def from_json(cls, value: Any) -> Output:
        """Read an output; raises `WireError`."""
        what = "output"
        raw = _object(value, what)
        encoding = _get(raw, "encoding", str, what)
        if encoding not in get_args(Encoding):
            raise WireError(f"output encoding {encoding!r} is not known here: expected identity or zstd")
        size, stored = _size(raw, "size", what), _size(raw, "stored_size", what)
        if encoding == "identity" and size != stored:
            raise WireError("output: an identity-encoded file has one size")
        return cls(
            name=check_output(_get(raw, "name", str, what)),
            sha256=check_digest(_get(raw, "sha256", str, what), "digest"),
            size=size,
            encoding=encoding,
            stored_size=stored,
        )


@dataclass(frozen=True, slots=True)
class Producer:
    """Who built an entry: version of this distribution, host, and the job's or model's label."""

    version: str
    host: str
    label: str = ""

    def to_json(self) -> Json:
        """Return the producer as plain JSON values."""
        return {"version": self.version, "host": self.host, "label": self.label}

    @classmethod
    def from_json(cls, value: Any) -> Producer:
        """Read a producer; raises `WireError`."""
        raw = _object(value, "producer")
        return cls(*(_get(raw, name, str, "producer") for name in ("version", "host", "label")))


@dataclass(frozen=True, slots=True)
class Entry:
    """Key -> outputs, with the key document and provenance. Immutable once published."""

    project: str
    kind: Kind
    key: str
    outputs: tuple[Output, ...]
    created: str
    compile_seconds: float
    producer: Producer
    key_document: Json | None = None
    peak_memory_bytes: int | None = None
    signature: Json | None = None
    promotions: tuple[Json, ...] = ()
    """How the entry came from project to project, the oldest record first; `client.signing.statements` reads them."""

    def output(self, name: str = MAIN_OUTPUT) -> Output | None:
        """Return the output called ``name``, or None."""
        return next((output for output in self.outputs if output.name == name), None)

    def without_document(self) -> Entry:
        """Return the entry without its key document, as it travels in a header."""
        return replace(self, key_document=None)

    def to_json(self) -> Json:
        """Return the entry as plain JSON values; the key document is left out if it is not known."""
        value: Json = {
            "schema": ENTRY_SCHEMA,
            "project": self.project,
            "kind": str(self.kind),
            "key": self.key,
            "outputs": [output.to_json() for output in self.outputs],
            "created": self.created,
            "compile_seconds": self.compile_seconds,
            "peak_memory_bytes": self.peak_memory_bytes,
            "producer": self.producer.to_json(),
            "signature": self.signature,
        }
        if self.key_document is not None:
            value["key_document"] = self.key_document
        if self.promotions:
            value["promotions"] = list(self.promotions)
        return value

    @classmethod
    def from_json(cls, value: Any) -> Entry:
        """Read an entry; raises `WireError`. That the key is the document's hash is checked by whoever stores it."""
        what = "entry"
        raw = _object(value, what)
        if raw.get("schema") != ENTRY_SCHEMA:
            raise WireError(f"entry schema {raw.get('schema')!r} is not known here: expected {ENTRY_SCHEMA}")
        outputs = tuple(Output.from_json(item) for item in _get(raw, "outputs", list, what))
        if not outputs or len({output.name for output in outputs}) != len(outputs):
            raise WireError("entry: expected at least one output, each name once")
        document, signature, peak = raw.get("key_document"), raw.get("signature"), raw.get("peak_memory_bytes")
        promotions = [] if raw.get("promotions") is None else _get(raw, "promotions", list, what)
        if len(promotions) > MAX_PROMOTIONS:
            raise WireError(f"entry: {len(promotions)} promotions, expected at most {MAX_PROMOTIONS}")
        return cls(
            project=check_project(_get(raw, "project", str, what)),
            kind=check_kind(_get(raw, "kind", str, what)),
            key=check_digest(_get(raw, "key", str, what)),
            outputs=outputs,
            created=_get(raw, "created", str, what),
            compile_seconds=_number(raw, "compile_seconds", what),
            producer=Producer.from_json(raw.get("producer")),
            key_document=None if document is None else _object(document, "key document"),
            peak_memory_bytes=None if peak is None else _size(raw, "peak_memory_bytes", what),
            signature=None if signature is None else _object(signature, "signature"),
            promotions=tuple(_object(item, "promotion") for item in promotions),
        )

    def to_header(self) -> str | None:
        """Return the `ENTRY_HEADER` value (base64url, no key document), or None if it would pass 4 KiB."""
        raw = json.dumps(self.without_document().to_json(), separators=(",", ":")).encode()
        text = base64.urlsafe_b64encode(raw).decode()
        return text if len(text) <= MAX_ENTRY_HEADER else None

    @classmethod
    def from_header(cls, text: str) -> Entry:
        """Read the value of `ENTRY_HEADER`; raises `WireError`."""
        try:
            return cls.from_json(json.loads(base64.urlsafe_b64decode(text)))
        except (binascii.Error, ValueError, RecursionError) as error:
            raise WireError(f"unreadable {ENTRY_HEADER} header: {error}") from error


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds, or asks for, the right to compile a key."""

    host: str
    pid: int
    rank: int | None = None
    label: str = ""

    def to_json(self) -> Json:
        """Return the holder as plain JSON values."""
        return {"host": self.host, "pid": self.pid, "rank": self.rank, "label": self.label}

    @classmethod
    def from_json(cls, value: Any) -> Holder:
        """Read a holder; raises `WireError`."""
        raw = _object(value, "holder")
        rank = raw.get("rank")
        return cls(
            host=_get(raw, "host", str, "holder"),
            pid=_size(raw, "pid", "holder"),
            rank=None if rank is None else _size(raw, "rank", "holder"),
            label=str(raw.get("label") or ""),
        )

    def __str__(self) -> str:
        """Return ``host, process 12, rank 3``."""
        rank = "" if self.rank is None else f", rank {self.rank}"
        return f"{self.host}, process {self.pid}{rank}"


@dataclass(frozen=True, slots=True)
class Ready:
    """The entry is there."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class Granted:
    """The caller may compile: renew every third of ``ttl_seconds``, publish or release at the end."""

    token: str
    generation: int
    ttl_seconds: float


@dataclass(frozen=True, slots=True)
class Wait:
    """Another process compiles. ``since`` is an RFC 3339 time, ``expires_in`` the seconds its lease still has."""

    generation: int
    holder: Holder
    since: str
    expires_in: float

    @property
    def names_a_living_holder(self) -> bool:
        """Whether somebody is named whose lease has time left: only then is it worth while to wait for long."""
        return bool(self.holder.host) and self.expires_in > 0


@dataclass(frozen=True, slots=True)
class Failed:
    """The compile failed; ``expires_in`` seconds until the failure is forgotten, ``replayed`` if we did not wait."""

    failure: Failure
    expires_in: float
    replayed: bool = False
    host: str = ""


@dataclass(frozen=True, slots=True)
class NotGranted:
    """The caller may wait for the entry but never compile for the cluster (state ``denied``)."""


LeaseAnswer: TypeAlias = Ready | Granted | Wait | Failed | NotGranted


def lease_answer_to_json(answer: LeaseAnswer) -> Json:
    """Return what ``POST …/leases/{key}`` answers."""
    match answer:
        case Ready(entry):
            return {"state": "ready", "entry": entry.to_json()}
        case Granted(token, generation, ttl):
            return {"state": "granted", "token": token, "generation": generation, "ttl_seconds": ttl}
        case Wait(generation, holder, since, expires_in):
            return {
                "state": "wait",
                "generation": generation,
                "holder": holder.to_json(),
                "since": since,
                "expires_in": expires_in,
            }
        case Failed(failure, expires_in, replayed, host):
            value = {"state": "failed", **failure.to_json(), "expires_in": expires_in, "replayed": replayed}
            return {**value, "host": host} if host else value
        case NotGranted():
            return {"state": "denied"}


def lease_answer_from_json(value: Any) -> LeaseAnswer:
    """Read what ``POST …/leases/{key}`` answered; raises `WireError`."""
    what = "lease"
    raw = _object(value, what)
    match raw.get("state"):
        case "ready":
            return Ready(Entry.from_json(raw.get("entry")))
        case "granted":
            return Granted(
                _get(raw, "token", str, what),
                _size(raw, "generation", what),
                min(_number(raw, "ttl_seconds", what), LONGEST_LEASE),
            )
        case "wait":
            return Wait(
                _size(raw, "generation", what),
                Holder.from_json(raw.get("holder")),
                _get(raw, "since", str, what),
                _lasts(raw, "expires_in", what, LONGEST_LEASE),
            )
        case "failed":
            return Failed(
                Failure.from_json(raw),
                _lasts(raw, "expires_in", what, LONGEST_MEMORY),
                bool(raw.get("replayed")),
                str(raw.get("host") or ""),
            )
        case "denied":
            return NotGranted()
        case other:
            raise WireError(f"lease state {other!r} is not known here")
