"""Run the server: one process, one line when it is ready, a drained stop on SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from typing import TYPE_CHECKING

import uvicorn

from cache_server import logging
from cache_server.app import create_app
from cache_server.http.protocol import BoundedProtocol
from cache_server.service import Service
from client.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.types import ASGIApp

    from cache_server.settings import Settings

KEEP_ALIVE_SECONDS = 75
"""Longer than the pauses of polling clients and the idle time of common load balancers (60 s)."""

_BACKLOG = 2048


def run(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; return the exit status: 0 after a stop, 1 if the server could not start."""
    logging.configure(settings)
    try:
        listener = _listen(settings)
        with contextlib.closing(listener), contextlib.closing(Service.open(settings)) as service:
            server = _Server(create_app(settings, service=service), service, listener)
            # drained by now; the exit status says whether it went well
            return 0 if server.serve_until_stopped() else 1
    except ConfigurationError as error:
        print(f"neff-cache: {error}", file=sys.stderr)  # noqa: T201 - the operator's one sentence
        return 1


def _listen(settings: Settings) -> socket.socket:
    """Bind the address before anything else is touched: the commonest mistake has the shortest answer."""
    host = settings.host.strip("[]")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on {settings.host}, port {settings.port}: {error.strerror or error}; "
            "give another --host or --port (0 takes a free port)"
        ) from error
    return listener


class _Server(uvicorn.Server):
    """uvicorn with our own start line, signals and stop."""

    def __init__(self, app: ASGIApp, service: Service, listener: socket.socket) -> None:
        settings = service.settings
        super().__init__(
            uvicorn.Config(
                app,
                loop="uvloop",
                http=BoundedProtocol.within(settings.head_seconds),
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=int(settings.shutdown_seconds),
                backlog=_BACKLOG,
            )
        )
        self._service = service
        self._listener = listener

    def serve_until_stopped(self) -> bool:
        """Serve; return whether the server ever became ready."""
        with contextlib.suppress(SystemExit, KeyboardInterrupt):
            self.run(sockets=[self._listener])
        return self.started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then say so: from this line on, connections are accepted."""
        await super().startup(sockets)
        if self.started:
            host, port = self._listener.getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            settings = self._service.settings
            where = settings.data_dir if settings.bucket_url is None else self._service.store.location
            print(  # noqa: T201 - scripts wait for this line
                f"neff-cache: serving http://{shown}:{port} (data in {where})", flush=True
            )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wake those who wait, then let running requests end."""
        self._service.waiters.close()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on a signal, and do not raise it again at the end: a stop that was asked for is no failure."""
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT)
        for number in signals:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)
