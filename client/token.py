"""Token files: the user's own one, and those that somebody else manages.

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
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from client.errors import ConfigurationError
from client.folders import base_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

TOKEN_VARIABLE = "NEURON_CACHE_TOKEN"  # noqa: S105 - the variable's name
TOKEN_FILE_VARIABLE = "NEURON_CACHE_TOKEN_FILE"  # noqa: S105 - the variable's name
TOKEN_COMMAND_VARIABLE = "NEURON_CACHE_TOKEN_COMMAND"  # noqa: S105 - the variable's name

_MAX_FILE = 64 * 1024
# RFC 6750 allows less; what cannot stand in a header line is refused here, before it can split one.
_TOKEN = re.compile(r"[\x21-\x7e]+")


def user_token_path(environ: Mapping[str, str]) -> Path:
    """Return ``$XDG_CONFIG_HOME/neff-cache/token``, by default below ``~/.config``.

    Raises `ConfigurationError` if neither the variable nor a home directory is known.
    """
    base = base_folder(environ, "XDG_CONFIG_HOME")
    if base is None:
        raise ConfigurationError("no home directory is known for the user's token: set XDG_CONFIG_HOME or HOME")
    return Path(base) / "neff-cache" / "token"


def ensure_user_token(environ: Mapping[str, str]) -> str:
    """Return the user's token; make one of 256 random bits if there is none.

    Two processes that start at once end with the same token. Raises `ConfigurationError` if the file cannot be made, or
    is one that `read_user_token` refuses.
    """
    path = user_token_path(environ)
    found = read_private_token(path)
    if found is not None:
        return found
    token = secrets.token_urlsafe(32)
    try:
        path.parent.parent.mkdir(parents=True, exist_ok=True)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        _create_whole(path, f"{token}\n".encode())
    except FileExistsError:
        other = read_private_token(path)
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
    return read_private_token(user_token_path(environ))


def is_loopback(host: str) -> bool:
    """Return whether ``host`` (a name or an address, without brackets) can only mean this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def checked_token(text: str, where: object) -> str:
    """Return ``text`` if it is a token; raises `ConfigurationError` that names ``where`` it was."""
    if not _TOKEN.fullmatch(text):
        raise ConfigurationError(f"{where} holds no token: expected one line of visible ASCII without spaces")
    return text


def read_managed_token(path: Path) -> str | None:
    """Read a file that somebody else manages: a mounted secret is often root's, a link, and readable by all.

    None if there is no file; raises `ConfigurationError`.
    """
    try:
        with _opened(path) as (descriptor, found):
            if not stat.S_ISREG(found.st_mode):
                raise ConfigurationError(f"the token file {path} is refused: it is no regular file")
            return _read(descriptor, path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigurationError(f"the token file {path} cannot be read: {error.strerror}") from error


def read_private_token(path: Path) -> str | None:
    """Read a file that must be ours alone. The checks are on the open descriptor, so that no swap can pass them.

    None if there is no file; raises `ConfigurationError`.
    """
    try:
        with _opened(path, os.O_NOFOLLOW) as (descriptor, found):
            _check_private(path, found)
            return _read(descriptor, path)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ConfigurationError(f"the token file {path} is refused: it is a symbolic link; remove it") from error
        raise ConfigurationError(
            f"the token file {path} cannot be read ({error.strerror}): set XDG_CONFIG_HOME to a directory of yours"
        ) from error


def _check_private(path: Path, found: os.stat_result) -> None:
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


@contextmanager
def _opened(path: Path, flags: int = 0) -> Iterator[tuple[int, os.stat_result]]:
    """Open a file, and never wait: a pipe in its place would keep us until somebody writes."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    try:
        yield descriptor, os.fstat(descriptor)
    finally:
        os.close(descriptor)


def _read(descriptor: int, path: Path) -> str:
    return checked_token(os.read(descriptor, _MAX_FILE).decode("ascii", "replace").strip(), path)


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
