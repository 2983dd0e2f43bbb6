"""A token that a command prints, such as a cloud's or a vault's own program.

The command is run when a token is first needed, once for all caches of a process, and its token is kept; it is run
again when the server refuses the token, or shortly before the token says that it ends. Forked children keep what the
parent had. What the command prints is a secret: no message holds any of it.
"""

from __future__ import annotations

import base64
import json
import os
import selectors
import shlex
import signal
import subprocess
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from client.errors import ConfigurationError, Unreachable
from client.token import TOKEN_COMMAND_VARIABLE, checked_token

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

COMMAND_SECONDS = 10.0
"""How long the command may take: as much as a job may lose to its cache in all."""
PAUSE = 30.0
"""Seconds before the command is run again, whatever came of it."""
EARLY = 60.0
"""Seconds before a token's end at which it is replaced."""
_MAX_OUTPUT = 64 * 1024


class TokenCommand:
    """One command line and the token it gave last. Safe to use from several threads and across a fork."""

    def __init__(
        self,
        line: str,
        environ: Mapping[str, str],
        *,
        monotonic: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._words = _words(line)
        self._environ = dict(environ)
        self._monotonic = monotonic
        self._now = now
        self._token: str | None = None
        self._reason = ""
        self._ran = float("-inf")
        self.lock = threading.Lock()

    def current(self, seconds: float = COMMAND_SECONDS) -> str:
        """Return the token, waiting for the command for ``seconds`` at most; raises `Unreachable` without one."""
        token = self._token
        if token is None or self._is_ending(token):
            self._run_again(token, seconds)
            token = self._token
        if token is None:
            raise Unreachable(self._reason or "there is no token yet: its command is running")
        return token

    def instead_of(self, refused: str, seconds: float = COMMAND_SECONDS) -> str | None:
        """Return another token than the one that was refused; None if there is none."""
        self._run_again(refused, seconds)
        return None if self._token == refused else self._token

    def _run_again(self, old: str | None, seconds: float) -> None:
        """Run the command unless another thread has done so since ``old``, or it ran a moment ago."""
        seconds = min(max(seconds, 0.0), COMMAND_SECONDS)
        if not self.lock.acquire(timeout=seconds):
            return
        try:
            if self._token != old or self._monotonic() - self._ran < PAUSE:
                return
            try:
                self._token = self._run(seconds)
            except _NoTokenError as error:
                # the old one may still do: whoever is asked will say
                self._reason = f"the command of {TOKEN_COMMAND_VARIABLE} gave no token: {error}"
            finally:
                self._ran = self._monotonic()
        finally:
            self.lock.release()

    def _run(self, seconds: float) -> str:
        """Run the command; return its token or raise `_NoTokenError`."""
        deadline = self._monotonic() + seconds
        try:
            process = subprocess.Popen(
                self._words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # programs like to repeat secrets in their complaints
                env=self._environ,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise _NoTokenError(f"{self._words[0]!r} cannot be started ({reason})") from error
        except RuntimeError as error:  # from Python 3.12 on nothing can be started at exit
            raise _NoTokenError("the process is ending") from error
        try:
            output = self._read(process, deadline)
            status = process.wait(max(deadline - self._monotonic(), 0.01))
        except subprocess.TimeoutExpired:
            raise _NoTokenError(f"it did not end within {seconds:.0f} s") from None
        finally:
            _end(process)
        if status != 0:
            raise _NoTokenError(f"it ended with status {status}; run it by hand to see why")
        try:
            return checked_token(output.strip(), "what it printed")
        except ConfigurationError as error:
            raise _NoTokenError(str(error)) from None

    def _read(self, process: subprocess.Popen[bytes], deadline: float) -> str:
        """Return what the command prints until it closes its output; raises TimeoutExpired and `_NoTokenError`."""
        assert process.stdout is not None  # noqa: S101 - it was asked for as a pipe
        descriptor, output = process.stdout.fileno(), b""
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while True:
                left = deadline - self._monotonic()
                if left <= 0 or not selector.select(left):
                    raise subprocess.TimeoutExpired(self._words[0], left)
                part = os.read(descriptor, _MAX_OUTPUT)
                output += part
                if not part:
                    return output.decode("ascii", "replace")
                if len(output) > _MAX_OUTPUT:
                    raise _NoTokenError(f"it printed more than {_MAX_OUTPUT} bytes")

    def _is_ending(self, token: str) -> bool:
        end = _end_of(token)
        return end is not None and self._now() > end - EARLY


class _NoTokenError(Exception):
    """The command gave no token; the message is the rest of a sentence."""


_shared: dict[str, TokenCommand] = {}


def shared_command(line: str, environ: Mapping[str, str]) -> TokenCommand:
    """Return this process's command of that line; raises `ConfigurationError` for a line that is none."""
    found = _shared.get(line)
    if found is None:
        # two threads at once agree on the one that was put there first
        found = _shared.setdefault(line, TokenCommand(line, environ))
    return found


def _unlock_in_child() -> None:
    # the thread that held it is not there any more
    for command in _shared.values():
        command.lock = threading.Lock()


os.register_at_fork(after_in_child=_unlock_in_child)


def _words(line: str) -> list[str]:
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise ConfigurationError(f"{TOKEN_COMMAND_VARIABLE} is no command line: {error}") from None
    if not words:
        raise ConfigurationError(f"{TOKEN_COMMAND_VARIABLE} names no program")
    return words


def _end(process: subprocess.Popen[bytes]) -> None:
    """Leave nothing of the command behind, its own children included."""
    if process.poll() is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _end_of(token: str) -> float | None:
    """Return when a JWT says that it ends, in seconds since the epoch; None for any other token."""
    parts = token.split(".")
    if len(parts) != 3:  # noqa: PLR2004 - header, claims, signature (RFC 7519)
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError):
        return None
    end = claims.get("exp") if isinstance(claims, dict) else None
    return end if isinstance(end, int | float) else None
