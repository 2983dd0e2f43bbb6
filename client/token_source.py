"""Which token a client shows to which server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from client.errors import ConfigurationError
from client.stalls import StalledError, folder_of
from client.token import (
    TOKEN_COMMAND_VARIABLE,
    TOKEN_FILE_VARIABLE,
    TOKEN_VARIABLE,
    checked_token,
    is_loopback,
    read_managed_token,
    read_private_token,
    user_token_path,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from client.token_command import TokenCommand

NO_HURRY = float("inf")


def client_token(url: str, environ: Mapping[str, str]) -> str | None:
    """Return the token to show to the server at ``url`` now, or None; raises `ConfigurationError`.

    ``NEURON_CACHE_TOKEN``, else the content of ``NEURON_CACHE_TOKEN_FILE``, else what ``NEURON_CACHE_TOKEN_COMMAND``
    prints, else the user's file if the host of ``url`` is this machine. An empty variable counts as not set.
    """
    return TokenSource(url, environ).current()


class TokenSource:
    """The token for one server, read again when its file changes (mounted secrets are renewed while jobs run).

    Raises `ConfigurationError` for a command that is none; it is not run before a token is asked for.
    """

    def __init__(self, url: str, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._loopback = is_loopback(urlsplit(url).hostname or "")
        self._seen: tuple[int, ...] = ()
        self._kept: str | None = None
        self._command: TokenCommand | None = None
        line = environ.get(TOKEN_COMMAND_VARIABLE, "").strip()
        if line and not any(environ.get(name, "").strip() for name in (TOKEN_VARIABLE, TOKEN_FILE_VARIABLE)):
            from client.token_command import shared_command  # noqa: PLC0415 - few jobs need what it imports

            self._command = shared_command(line, environ)

    @property
    def takes_time(self) -> bool:
        """Whether a command may have to be run for the token."""
        return self._command is not None

    def instead_of(self, refused: str, seconds: float = NO_HURRY) -> str | None:
        """Return another token than the one that the server refused (it may have run out); None if there is none."""
        if self._command is not None:
            return self._command.instead_of(refused, seconds)
        found = self.current()
        return None if found == refused else found

    def current(self, seconds: float = NO_HURRY) -> str | None:
        """Return the token, or None to ask without one; raises `ConfigurationError`.

        A command may take ``seconds``; raises `client.errors.Unreachable` if it gives none.
        """
        token = self._environ.get(TOKEN_VARIABLE, "").strip()
        if token:
            return checked_token(token, TOKEN_VARIABLE)
        name = self._environ.get(TOKEN_FILE_VARIABLE, "").strip()
        if name:
            return self._from_file(Path(name))
        if self._command is not None:
            return self._command.current(seconds)
        if not self._loopback:
            return None
        return self._when_changed(user_token_path(self._environ), private=True)

    def _from_file(self, path: Path) -> str:
        try:
            token = self._when_changed(path, private=False)
        except ConfigurationError as error:
            raise ConfigurationError(f"{TOKEN_FILE_VARIABLE} cannot be followed: {error}") from error
        if token is None:
            raise ConfigurationError(f"{TOKEN_FILE_VARIABLE} names {path}, and there is no such file")
        return token

    def _when_changed(self, path: Path, *, private: bool) -> str | None:
        try:
            return folder_of(path).reach(lambda: self._read_again(path, private=private))
        except StalledError as error:
            raise ConfigurationError(f"the token file {path} cannot be read: {error.strerror}") from error

    def _read_again(self, path: Path, *, private: bool) -> str | None:
        try:
            found = path.lstat() if private else path.stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigurationError(f"the token file {path} cannot be read: {error.strerror}") from error
        seen = (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)
        if self._kept is None or seen != self._seen:
            self._kept = read_private_token(path) if private else read_managed_token(path)
            self._seen = seen
        return self._kept
