"""Tokens: the user's own token file, and which token a client shows to which server.

The user's file makes the first start on one machine need no set-up: `serve` on a loopback address accepts the token in
it, and a client on the same machine reads the same file. It is never shown to another machine. No message of this
module contains a token.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import secrets
import stat
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from client.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

TOKEN_VARIABLE = "NEURON_CACHE_TOKEN"  # noqa: S105 - the variable's name
TOKEN_FILE_VARIABLE = "NEURON_CACHE_TOKEN_FILE"  # noqa: S105 - the variable's name

_MAX_FILE = 64 * 1024
# RFC 6750 allows less; what cannot stand in a header line is refused here, before it can split one.
_TOKEN = re.compile(r"[\x21-\x7e]+")


def user_token_path(environ: Mapping[str, str]) -> Path:
    """Return ``$XDG_CONFIG_HOME/neff-cache/token``, by default below ``~/.config``.

    Raises `ConfigurationError` if neither the variable nor a home directory is known.
    """
    base = Path(environ.get("XDG_CONFIG_HOME", ""))
    if base.is_absolute():  # the XDG specification: a relative path is to be ignored
        return base / "neff-cache" / "token"
    home = Path(environ.get("HOME") or os.path.expanduser("~"))  # noqa: PTH111 - Path.home() raises where this does not
    if not home.is_absolute():
        raise ConfigurationError("no home directory is known for the user's token: set XDG_CONFIG_HOME or HOME")
    return home / ".config" / "neff-cache" / "token"


def ensure_user_token(environ: Mapping[str, str]) -> str:
    """Return the user's token; make one of 256 random bits if there is none.

    Two processes that start at once end with the same token. Raises `ConfigurationError` if the file cannot be made, or
    is one that `read_user_token` refuses.
    """
    path = user_token_path(environ)
    found = _read_private(path)
    if found is not None:
        return found
    token = secrets.token_urlsafe(32)
    try:
        path.parent.parent.mkdir(parents=True, exist_ok=True)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        _create_whole(path, f"{token}\n".encode())
    except FileExistsError:
        other = _read_private(path)
        if other is None:
            raise ConfigurationError(f"the token file {path} came and went while it was read: start again") from None
        return other
    except OSError as error:
        raise ConfigurationError(
            f"the token file {path} cannot be made ({error.strerror}): set XDG_CONFIG_HOME to a directory of yours"
        ) from error
    return token


def read_user_token(environ: Mapping[str, str]) -> str | None:
    """Return the user's token, or None if there is no file.

    Raises `ConfigurationError` for a file that is a link, belongs to somebody else, is readable by others or holds no
    token: it may be known to others, or may be theirs.
    """
    return _read_private(user_token_path(environ))


def client_token(url: str, environ: Mapping[str, str]) -> str | None:
    """Return the token to show to the server at ``url`` now, or None; raises `ConfigurationError`.

    ``NEURON_CACHE_TOKEN``, else the content of ``NEURON_CACHE_TOKEN_FILE``, else the user's file if the host of ``url``
    is this machine. An empty variable counts as not set.
    """
    return TokenSource(url, environ).current()


def is_loopback(host: str) -> bool:
    """Return whether ``host`` (a name or an address, without brackets) can only mean this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class TokenSource:
    """The token for one server, read again when its file changes (mounted secrets are renewed while jobs run)."""

    def __init__(self, url: str, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._loopback = is_loopback(urlsplit(url).hostname or "")
        self._seen: tuple[int, ...] = ()
        self._kept: str | None = None

    def current(self) -> str | None:
        """Return the token, or None to ask without one; raises `ConfigurationError`."""
        token = self._environ.get(TOKEN_VARIABLE, "").strip()
        if token:
            return _checked(token, TOKEN_VARIABLE)
        name = self._environ.get(TOKEN_FILE_VARIABLE, "")
        if name:
            return self._from_file(Path(name))
        if not self._loopback:
            return None
        return self._when_changed(user_token_path(self._environ), private=True)

    def _from_file(self, path: Path) -> str:
        token = self._when_changed(path, private=False)
        if token is None:
            raise ConfigurationError(f"{TOKEN_FILE_VARIABLE} names {path}, and there is no such file")
        return token

    def _when_changed(self, path: Path, *, private: bool) -> str | None:
        try:
            found = path.lstat() if private else path.stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigurationError(f"the token file {path} cannot be read: {error.strerror}") from error
        seen = (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)
        if self._kept is None or seen != self._seen:
            self._kept = _read_private(path) if private else _read_any(path)
            self._seen = seen
        return self._kept


def _checked(text: str, where: object) -> str:
    if not _TOKEN.fullmatch(text):
        raise ConfigurationError(f"{where} holds no token: expected one line of visible ASCII without spaces")
    return text


def _read_any(path: Path) -> str | None:
    """Read a file that somebody else manages: a mounted secret is often root's, a link, and readable by all."""
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_FILE)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigurationError(f"the token file {path} cannot be read: {error.strerror}") from error
    return _checked(raw.decode("ascii", "replace").strip(), path)


def _read_private(path: Path) -> str | None:
    """Read a file that must be ours alone. The checks are on the open descriptor, so that no swap can pass them."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ConfigurationError(f"the token file {path} is refused: it is a symbolic link; remove it") from error
        raise ConfigurationError(
            f"the token file {path} cannot be read ({error.strerror}): set XDG_CONFIG_HOME to a directory of yours"
        ) from error
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise ConfigurationError(f"the token file {path} is refused: it is no regular file; remove it")
        if found.st_uid != os.geteuid():
            raise ConfigurationError(
                f"the token file {path} is refused: it belongs to user id {found.st_uid}, not to {os.geteuid()}; "
                "remove it or set XDG_CONFIG_HOME"
            )
        if found.st_mode & 0o077:
            raise ConfigurationError(
                f"the token file {path} is refused: others have access to it (mode {stat.S_IMODE(found.st_mode):04o}); "
                "remove it to have a new token made, or `chmod 600` it if nobody read it"
            )
        return _checked(file.read(_MAX_FILE).decode("ascii", "replace").strip(), path)


def _create_whole(path: Path, content: bytes) -> None:
    """Create ``path`` with its content in one step, or raise `FileExistsError`: nobody ever reads half a token."""
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    _write_new(temporary, content)
    try:
        os.link(temporary, path, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError:
        # No hard links here. A process killed between the two calls leaves an empty file, which is refused by name.
        _write_new(path, content)
    finally:
        temporary.unlink(missing_ok=True)


def _write_new(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(descriptor)
