"""The listening socket, in clear text or behind TLS whose certificate is renewed while it is open."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import structlog

from client.errors import ConfigurationError

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable

    from cache_server.tls import TlsFiles

BACKLOG = 2048
SETTLE_SECONDS = 0.25
_GOODBYE_SECONDS = 5.0

_log = structlog.get_logger("cache_server")


class Listening:
    """Accepts connections on ``listener`` for ``protocol``; a TLS handshake has ``handshake_seconds``.

    ``files`` are those that ``context`` was read from, both None without TLS. `servers` is the list that uvicorn closes
    at the end. A renewed certificate gets a new server on the same socket: connections that stand keep the old one, and
    none that is waiting to be accepted is lost.
    """

    def __init__(
        self,
        listener: socket.socket,
        files: TlsFiles | None,
        context: ssl.SSLContext | None,
        *,
        handshake_seconds: float,
    ) -> None:
        self._listener = listener
        self._files = files
        self._context = context
        self._handshake_seconds = handshake_seconds
        self._stamp = () if files is None else files.stamp()
        self.servers: list[asyncio.Server] = []

    @property
    def scheme(self) -> str:
        """``http`` or ``https``."""
        return "http" if self._context is None else "https"

    async def open(self, protocol: Callable[[], asyncio.Protocol]) -> None:
        """Begin to accept, instead of what accepted before."""
        is_tls = self._context is not None
        new = await asyncio.get_running_loop().create_server(
            protocol,
            sock=self._listener.dup(),
            ssl=self._context,
            backlog=BACKLOG,
            ssl_handshake_timeout=self._handshake_seconds if is_tls else None,
            ssl_shutdown_timeout=_GOODBYE_SECONDS if is_tls else None,
        )
        for old in self.servers:
            old.close()
        self.servers[:] = [new]

    async def close(self, protocol: Callable[[], asyncio.Protocol]) -> None:
        """Accept no more, but serve connections that are made: to close the socket resets those in its queue."""
        loop = asyncio.get_running_loop()
        for server in self.servers:
            server.close()  # of its own descriptor: the socket still listens
        self._listener.settimeout(0)
        waiting: list[socket.socket] = []
        with contextlib.suppress(OSError):
            while len(waiting) < BACKLOG:
                waiting.append(self._listener.accept()[0])
        self._listener.close()
        timeout = None if self._context is None else self._handshake_seconds
        accepted = [
            loop.create_task(
                loop.connect_accepted_socket(protocol, each, ssl=self._context, ssl_handshake_timeout=timeout)
            )
            for each in waiting
        ]
        # also those whose request is on its way
        await asyncio.sleep(SETTLE_SECONDS)
        for task in accepted:
            task.cancel()  # a handshake that is not over
        await asyncio.gather(*accepted, return_exceptions=True)

    async def keep_fresh(self, protocol: Callable[[], asyncio.Protocol], seconds: float) -> None:
        """Look at the files every so many ``seconds``, for ever. Files that cannot be used are tried until they can."""
        files = self._files
        refused = None
        while files is not None:
            await asyncio.sleep(seconds)
            stamp = files.stamp()
            if stamp == self._stamp:
                continue
            try:
                self._context = files.context()
            except ConfigurationError as error:
                # a renewal that is half done: the pair in use serves on
                if stamp != refused:
                    _log.warning("certificate not renewed", reason=str(error))
                refused = stamp
                continue
            await self.open(protocol)
            self._stamp = stamp
            _log.info("certificate renewed", certificate=str(files.certificate))
