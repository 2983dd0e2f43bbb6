"""The list of trusted keys: a text file, one key on each line, and its verdict on an entry.

::

    ed25519 <base64> <name> [not-before=TIME] [not-after=TIME] [revoked=TIME] [kinds=a,b] [projects=a,b-*]

Blank lines and lines that begin with # mean nothing. TIME is RFC 3339, or a date (its first moment, UTC).
``not-before`` and ``not-after`` bound when an entry says that it was created: they retire a key that nobody stole. A
thief may write any time into an entry, so a ``revoked`` key is never believed again, whatever it signed and whenever.
An option that is not known makes the list unreadable: it may be a bound that must hold.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from client.errors import ConfigurationError, FormatError, SignatureError, WireError
from client.key import check_document
from client.names import Kind, check_kind
from client.signing.keys import PublicKey, check_name
from client.signing.statements import Promotion, Signature, entry_statement
from client.stalls import folder_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from client.wire import Entry

MAX_LIST = 1 << 20
"""Bytes of the longest list that is read."""
_WORDS = 3
_OPTIONS = ("not-before", "not-after", "revoked", "kinds", "projects")


def parse_time(text: str) -> dt.datetime:
    """Return the time that RFC 3339 text, or a date, stands for; without a zone it is UTC. Raises `FormatError`."""
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError:
        raise FormatError(
            f"{text[:40]!r} is no time: expected a date such as 2026-12-31, or 2026-12-31T18:00:00Z"
        ) from None
    return found.replace(tzinfo=dt.UTC) if found.tzinfo is None else found


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_LIST + 1)


@dataclass(frozen=True, slots=True)
class TrustedKey:
    """One line of a list. Times are as they were written; empty ``kinds`` and ``projects`` mean all of them."""

    public: PublicKey
    name: str
    not_before: str | None = None
    not_after: str | None = None
    revoked: str | None = None
    kinds: tuple[Kind, ...] = ()
    projects: tuple[str, ...] = ()

    @property
    def key_id(self) -> str:
        """The key's id."""
        return self.public.key_id

    @classmethod
    def parse(cls, line: str) -> TrustedKey:
        """Read a line; raises `FormatError`."""
        words = line.split()
        if len(words) < _WORDS:
            raise FormatError(f"{line[:60]!r} is no trusted key: expected `ed25519 BASE64 NAME [option=value …]`")
        options: dict[str, str] = {}
        for word in words[_WORDS:]:
            name, separator, value = word.partition("=")
            if name not in _OPTIONS or not separator or not value or name in options:
                raise FormatError(f"{word[:60]!r}: expected each of {', '.join(_OPTIONS)} once at most, as NAME=VALUE")
            options[name] = value
        for name in ("not-before", "not-after", "revoked"):
            if name in options:
                parse_time(options[name])
        kinds = options.get("kinds", "")
        projects = options.get("projects", "")
        return cls(
            public=PublicKey.parse(words[0], words[1]),
            name=check_name(words[2]),
            not_before=options.get("not-before"),
            not_after=options.get("not-after"),
            revoked=options.get("revoked"),
            kinds=tuple(map(check_kind, kinds.split(","))) if kinds else (),
            projects=tuple(projects.split(",")) if projects else (),
        )

    @property
    def line(self) -> str:
        """The key as a line of a list."""
        values = (
            self.not_before,
            self.not_after,
            self.revoked,
            ",".join(kind.value for kind in self.kinds),
            ",".join(self.projects),
        )
        options = [f"{name}={value}" for name, value in zip(_OPTIONS, values, strict=True) if value]
        return " ".join([str(self.public), self.name, *options])

    def covers(self, time: str) -> bool:
        """Return whether the key was in use at the time that a statement gives."""
        if self.not_before is None and self.not_after is None:
            return True
        try:
            found = parse_time(time)
        except FormatError:
            return False
        return (self.not_before is None or found >= parse_time(self.not_before)) and (
            self.not_after is None or found <= parse_time(self.not_after)
        )

    def speaks_for(self, kind: Kind, project: str) -> bool:
        """Return whether the key may vouch for entries of the kind in the project."""
        return (not self.kinds or kind in self.kinds) and (
            not self.projects or any(fnmatchcase(project, pattern) for pattern in self.projects)
        )


class TrustList:
    """Keys by id. Immutable; an empty list trusts nobody."""

    def __init__(self, keys: Iterable[TrustedKey] = ()) -> None:
        self.keys = tuple(keys)
        self._by_id = {key.key_id: key for key in self.keys}
        if len(self._by_id) != len(self.keys):
            raise FormatError("a list of trusted keys names each key once")

    @classmethod
    def parse(cls, text: str) -> TrustList:
        """Read a list; raises `FormatError` with the number of the line."""
        keys = []
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip() and not line.lstrip().startswith("#"):
                try:
                    keys.append(TrustedKey.parse(line))
                except FormatError as error:
                    raise FormatError(f"line {number}: {error}") from error
        return cls(keys)

    @classmethod
    def load(cls, path: Path) -> TrustList:
        """Read a file; raises `ConfigurationError`."""
        try:
            raw = folder_of(path).call(lambda: _read(path))  # watched on every disk: it may be a pipe
        except OSError as error:
            raise ConfigurationError(f"the list of trusted keys {path} cannot be read: {error.strerror}") from error
        if len(raw) > MAX_LIST:
            raise ConfigurationError(f"the list of trusted keys {path} is longer than {MAX_LIST} bytes")
        try:
            return cls.parse(raw.decode())
        except (FormatError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"the list of trusted keys {path} cannot be used: {error}") from error

    @property
    def text(self) -> str:
        """The list as a file holds it."""
        return "".join(f"{key.line}\n" for key in self.keys)

    def get(self, key_id: str) -> TrustedKey | None:
        """Return the key of that id."""
        return self._by_id.get(key_id)

    def find(self, text: str) -> TrustedKey:
        """Return the key of that id or name; raises `ConfigurationError`."""
        found = [key for key in self.keys if text in (key.key_id, key.name)]
        if len(found) != 1:
            which = "no key" if not found else f"{len(found)} keys"
            raise ConfigurationError(f"{which} in the list are called {text!r}: expected the id or name of one")
        return found[0]

    def with_key(self, key: TrustedKey) -> TrustList:
        """Return the list with a key added, or changed; raises `FormatError` if that would bring a revoked one back."""
        before = self.get(key.key_id)
        if before is not None and before.revoked is not None and key.revoked is None:
            raise FormatError(f"{before.name} ({before.key_id}) was revoked, and stays so: make another key")
        if before is None:
            return TrustList((*self.keys, key))
        return TrustList(key if each.key_id == key.key_id else each for each in self.keys)

    def revoke(self, key: TrustedKey, time: str) -> TrustList:
        """Return the list with a key revoked for good."""
        return self.with_key(replace(key, revoked=key.revoked or time))

    def without(self, key: TrustedKey) -> TrustList:
        """Return the list without a key; raises `FormatError` for a revoked one, which the list must remember."""
        if key.revoked is not None:
            raise FormatError(f"{key.name} ({key.key_id}) was revoked: it stays in the list, so that it stays refused")
        return TrustList(each for each in self.keys if each.key_id != key.key_id)

    # The verdict

    def check(self, entry: Entry) -> TrustedKey:
        """Return the key that vouches for an entry in its project; raises `SignatureError`.

        Either the entry's own signer speaks for the project; or it speaks for the one that the entry was made in, and
        each promotion from there on is signed by a key that speaks for the project promoted to.
        """
        if entry.key_document is not None:
            try:
                check_document(entry.key_document, kind=entry.kind, key=entry.key)
            except WireError as error:
                raise SignatureError("wrong_key", str(error)) from error
        if entry.signature is None:
            raise SignatureError("unsigned", "it is not signed")
        signer = self._signer(Signature.from_json(entry.signature), entry_statement(entry), entry.created)
        if not signer.speaks_for(entry.kind, entry.project):
            self._check_promotions(entry, signer)
        return signer

    def check_promotion(self, record: Promotion) -> TrustedKey:
        """Return the key that signed a promotion and may; raises `SignatureError`."""
        if record.signature is None:
            raise SignatureError("unsigned", f"its promotion to {record.target} is not signed")
        signer = self._signer(record.signature, record.statement, record.time)
        if not signer.speaks_for(record.kind, record.target):
            raise _not_allowed(signer, record.kind, record.target)
        return signer

    def _signer(self, signature: Signature, statement: bytes, time: str) -> TrustedKey:
        key = self.get(signature.key_id)
        if key is None:
            raise SignatureError("unknown_key", f"it is signed by the key {signature.key_id}, which is not trusted")
        if key.revoked is not None:
            raise SignatureError("revoked", f"it is signed by {key.name} ({key.key_id}), which was revoked")
        if not key.public.verifies(statement, signature.value):
            raise SignatureError("wrong", f"it is not what {key.name} ({key.key_id}) signed")
        if not key.covers(time):
            raise SignatureError("outside", f"it says {time[:40]!r}, when {key.name} ({key.key_id}) was not in use")
        return key

    def _check_promotions(self, entry: Entry, signer: TrustedKey) -> None:
        try:
            records = [Promotion.from_json(value) for value in entry.promotions]
        except WireError as error:
            raise SignatureError("malformed", str(error)) from error
        project = records[0].source if records else entry.project
        if not signer.speaks_for(entry.kind, project):
            raise _not_allowed(signer, entry.kind, project)
        for record in records:
            if not record.is_of(entry) or record.source != project:
                raise SignatureError("wrong", f"its promotion to {record.target} is that of another entry")
            self.check_promotion(record)
            project = record.target
        if project != entry.project:
            raise SignatureError("not_allowed", f"it was promoted to {project}, not to {entry.project}")


def _not_allowed(key: TrustedKey, kind: Kind, project: str) -> SignatureError:
    return SignatureError("not_allowed", f"{key.name} ({key.key_id}) does not speak for {kind} in project {project}")
