"""What exactly is signed, as bytes: RFC 8785 of a few members of an entry, and of a promotion.

::

    entry       {schema, kind, key, outputs, created, compile_seconds, producer}
    promotion   {schema, type: "promotion", kind, key, entry_sha256, from, to, by, time}

An entry's project is not in it: a promotion copies the entry to another one, and says so in a record of its own, which
names the SHA-256 of the entry's signed bytes. Neither statement can be taken for the other: their members differ.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from client.errors import SignatureError, WireError
from client.key import canonical_json
from client.names import Kind, check_digest, check_kind, check_project
from client.signing.keys import ALGORITHM, KEY_ID
from client.wire import ENTRY_SCHEMA, Entry

if TYPE_CHECKING:
    from client.signing.keys import PrivateKey
    from client.wire import Json

PROMOTION_SCHEMA = 1
MAX_BY = 255
_TYPE = "promotion"
_SIZE = 64


@dataclass(frozen=True, slots=True)
class Signature:
    """A signature: which key is said to have made it, and its 64 bytes."""

    key_id: str
    value: bytes

    def to_json(self) -> Json:
        """Return the signature as plain JSON values."""
        return {"alg": ALGORITHM, "key_id": self.key_id, "value": base64.b64encode(self.value).decode()}

    @classmethod
    def from_json(cls, value: Any) -> Signature:
        """Read a signature; raises `SignatureError`."""
        raw = value if isinstance(value, dict) else {}
        if raw.get("alg") != ALGORITHM:
            raise SignatureError("malformed", f"its signature is by {str(raw.get('alg'))[:20]!r}, not by {ALGORITHM}")
        key_id, text = raw.get("key_id"), raw.get("value")
        if not isinstance(key_id, str) or not KEY_ID.fullmatch(key_id) or not isinstance(text, str):
            raise SignatureError("malformed", "its signature names no key, or has no value")
        try:
            found = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            found = b""
        if len(found) != _SIZE:
            raise SignatureError("malformed", f"its signature is not the base64 of {_SIZE} bytes")
        return cls(key_id, found)

    @classmethod
    def by(cls, key: PrivateKey, statement: bytes) -> Signature:
        """Sign a statement."""
        return cls(key.public.key_id, key.sign(statement))


def entry_statement(entry: Entry) -> bytes:
    """Return the bytes that an entry's signature covers; raises `SignatureError` for what has no canonical form."""
    value = entry.to_json()
    members = ("kind", "key", "outputs", "created", "compile_seconds", "producer")
    return _canonical({"schema": ENTRY_SCHEMA, **{name: value[name] for name in members}})


def entry_digest(entry: Entry) -> str:
    """Return the SHA-256 of what an entry's signature covers: the same for its copies in all projects."""
    return hashlib.sha256(entry_statement(entry)).hexdigest()


def sign_entry(entry: Entry, key: PrivateKey) -> Entry:
    """Return the entry with a signature; how its outputs are encoded must be decided by then."""
    return replace(entry, signature=Signature.by(key, entry_statement(entry)).to_json())


@dataclass(frozen=True, slots=True)
class Promotion:
    """That somebody let an entry into another project. ``time`` is RFC 3339 in UTC, by the promoter's clock."""

    kind: Kind
    key: str
    entry_sha256: str
    source: str
    target: str
    by: str
    time: str
    signature: Signature | None = None

    @classmethod
    def of(cls, entry: Entry, target: str, *, by: str, time: str) -> Promotion:
        """Return the record, not signed yet, of letting ``entry`` into ``target``."""
        return cls(entry.kind, entry.key, entry_digest(entry), entry.project, check_project(target), by, time)

    @property
    def statement(self) -> bytes:
        """The bytes that the record's signature covers."""
        value = self.to_json()
        del value["signature"]
        return _canonical(value)

    def signed(self, key: PrivateKey) -> Promotion:
        """Return the record with a signature."""
        return replace(self, signature=Signature.by(key, self.statement))

    def is_of(self, entry: Entry) -> bool:
        """Return whether the record is about exactly this entry, whichever project its copy lies in."""
        return (self.kind, self.key, self.entry_sha256) == (entry.kind, entry.key, entry_digest(entry))

    def to_json(self) -> Json:
        """Return the record as plain JSON values."""
        return {
            "schema": PROMOTION_SCHEMA,
            "type": _TYPE,
            "kind": str(self.kind),
            "key": self.key,
            "entry_sha256": self.entry_sha256,
            "from": self.source,
            "to": self.target,
            "by": self.by,
            "time": self.time,
            "signature": None if self.signature is None else self.signature.to_json(),
        }

    @classmethod
    def from_json(cls, value: Any) -> Promotion:
        """Read a record; raises `WireError`, `SignatureError` for a signature that is none."""
        raw = value if isinstance(value, dict) else {}
        if (raw.get("schema"), raw.get("type")) != (PROMOTION_SCHEMA, _TYPE):
            raise WireError(f"promotion: expected a record of schema {PROMOTION_SCHEMA}")
        texts = [raw.get(name) for name in ("kind", "key", "entry_sha256", "from", "to", "by", "time")]
        if not all(isinstance(text, str) and len(text) <= MAX_BY for text in texts):
            raise WireError("promotion: a member is missing or no text")
        kind, key, digest, source, target, by, time = map(str, texts)
        signature = raw.get("signature")
        return cls(
            kind=check_kind(kind),
            key=check_digest(key),
            entry_sha256=check_digest(digest, "digest"),
            source=check_project(source),
            target=check_project(target),
            by=by,
            time=time,
            signature=None if signature is None else Signature.from_json(signature),
        )


def _canonical(value: Json) -> bytes:
    try:
        return canonical_json(value)
    except (WireError, UnicodeEncodeError) as error:
        raise SignatureError("malformed", f"it cannot be signed or verified: {error}") from error
