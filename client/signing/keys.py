"""Ed25519 keys (RFC 8032): private ones as PEM files that nobody else can read, public ones as one line of text.

A public key is written ``ed25519 <base64 of its 32 bytes> <name>``. Its id is the first 16 hexadecimal digits of the
SHA-256 of those 32 bytes: enough to find a key in a list; what counts is always the whole key.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from client.errors import ConfigurationError, FormatError
from client.stalls import StalledError, folder_of

if TYPE_CHECKING:
    from pathlib import Path

    from cryptography.hazmat.primitives.asymmetric import ed25519

ALGORITHM = "ed25519"
PUBLIC_SUFFIX = ".pub"
KEY_ID = re.compile(r"[0-9a-f]{16}")

_PUBLIC_SIZE = 32
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_MAX_FILE = 64 * 1024
_MISSING = "signatures need the package cryptography: `pip install 'neff-cache[signing]'`"


def check_name(name: str) -> str:
    """Return ``name`` if a key can be called so, else raise `FormatError`."""
    if not _NAME.fullmatch(name):
        raise FormatError(f"{name!r} is no name of a key: expected 1 to 64 of letters, digits, '.', '_', '@' and '-'")
    return name


@dataclass(frozen=True, slots=True)
class PublicKey:
    """The 32 bytes that others check signatures with."""

    raw: bytes

    @property
    def key_id(self) -> str:
        """The key's short name: 16 hexadecimal digits."""
        return hashlib.sha256(self.raw).hexdigest()[:16]

    def __str__(self) -> str:
        """Return ``ed25519 <base64>``."""
        return f"{ALGORITHM} {base64.b64encode(self.raw).decode()}"

    @classmethod
    def parse(cls, algorithm: str, text: str) -> PublicKey:
        """Read the first two words of a line; raises `FormatError`."""
        if algorithm != ALGORITHM:
            raise FormatError(f"a key of the kind {algorithm[:20]!r} is not known here: expected {ALGORITHM}")
        try:
            raw = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raw = b""
        # one way to write each key, so that lists can be compared as text
        if len(raw) != _PUBLIC_SIZE or base64.b64encode(raw).decode() != text:
            raise FormatError(f"{text[:60]!r} is no public key: expected the base64 of {_PUBLIC_SIZE} bytes")
        return cls(raw)

    def verifies(self, message: bytes, signature: bytes) -> bool:
        """Return whether the key's owner signed ``message``; raises `ConfigurationError` without ``cryptography``."""
        try:
            from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - see the package's docstring
            from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415
        except ImportError as error:
            raise ConfigurationError(_MISSING) from error
        try:
            ed25519.Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, message)
        except (InvalidSignature, ValueError):
            return False
        return True


class PrivateKey:
    """A key that signs. It is never shown, nor any part of it."""

    def __init__(self, key: ed25519.Ed25519PrivateKey) -> None:
        self._key = key
        self.public = PublicKey(key.public_key().public_bytes_raw())

    @classmethod
    def generate(cls) -> PrivateKey:
        """Make a new key; raises `ConfigurationError` without ``cryptography``."""
        try:
            from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415 - see the package's docstring
        except ImportError as error:
            raise ConfigurationError(_MISSING) from error
        return cls(ed25519.Ed25519PrivateKey.generate())

    @classmethod
    def load(cls, path: Path) -> PrivateKey:
        """Read a key (PEM, PKCS #8, without password); raises `ConfigurationError`.

        The file must be the own user's or root's, and nobody else may have any access to it.
        """
        try:
            content = folder_of(path).reach(lambda: _read_private(path))
        except StalledError as error:
            raise ConfigurationError(f"the signing key {path} cannot be read: {error.strerror}") from error
        try:
            from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415 - see the package's docstring
            from cryptography.hazmat.primitives.serialization import load_pem_private_key  # noqa: PLC0415
        except ImportError as error:
            raise ConfigurationError(_MISSING) from error
        try:
            key = load_pem_private_key(content, password=None)
        except (ValueError, TypeError) as error:  # TypeError: it has a password
            raise ConfigurationError(
                f"the signing key {path} cannot be read: expected a PEM file without password, as"
                " `neff-cache key generate` makes it"
            ) from error
        if not isinstance(key, ed25519.Ed25519PrivateKey):
            raise ConfigurationError(f"the signing key {path} is of another kind: expected Ed25519")
        return cls(key)

    def save(self, path: Path) -> None:
        """Write the key to a new file, 0600; raises `ConfigurationError`, also if there is a file of that name."""
        from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - it was there to make the key

        content = self._key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        write_new(path, content, mode=0o600)

    def sign(self, message: bytes) -> bytes:
        """Return the 64 bytes of a signature."""
        return self._key.sign(message)


def write_new(path: Path, content: bytes, *, mode: int) -> None:
    """Write a new file; raises `ConfigurationError`, also if there is a file of that name: keys are not replaced."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
    except FileExistsError:
        raise ConfigurationError(f"{path} is there already: name another file, keys are not replaced") from None
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from error


def _read_private(path: Path) -> bytes:
    """Return a secret's bytes. The checks are on the open descriptor; links are followed, as mounted secrets are."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigurationError(f"the signing key {path} cannot be read: {error.strerror}") from error
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise ConfigurationError(f"the signing key {path} is refused: it is no regular file")
        if found.st_uid not in (os.geteuid(), 0):
            raise ConfigurationError(
                f"the signing key {path} is refused: it belongs to user id {found.st_uid}, not to {os.geteuid()}"
            )
        if found.st_mode & 0o077:
            raise ConfigurationError(
                f"the signing key {path} is refused: others have access to it (mode {stat.S_IMODE(found.st_mode):04o});"
                " `chmod 600` it if nobody read it, else revoke it and make another"
            )
        return file.read(_MAX_FILE)
