"""Run the server: one process, one line when it is ready, a drained stop on SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING

import structlog
import uvicorn
from prometheus_client import disable_created_metrics

from cache_server import logging
from cache_server.app import create_app
from cache_server.configuration import made_up
from cache_server.http.listening import BACKLOG, Listening
from cache_server.http.protocol import BoundedProtocol
from cache_server.opening import GRACE_SECONDS, Opening, listen_meanwhile
from cache_server.tls import TlsFiles
from client.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from starlette.types import ASGIApp

    from cache_server.service import Service
    from cache_server.settings import Settings

_FORCED_SECONDS = 2.0

KEEP_ALIVE_SECONDS = 75
"""Longer than the pauses of polling clients and the idle time of common load balancers (60 s)."""

_log = structlog.get_logger("cache_server")


def run(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; return the exit status: 1 without a start, or if requests were cut."""
    logging.configure(settings)
    ignored = made_up(os.environ)
    if ignored is not None:
        _log.warning(ignored)
    # when each counter began: as many series again, and nothing asks for them
    disable_created_metrics()  # type: ignore[no-untyped-call] # as it comes
    try:
        files = TlsFiles.from_settings(settings)
        context = None if files is None else files.context()
        listener = _listen(settings)
        with contextlib.ExitStack() as closing:
            closing.enter_context(contextlib.closing(listener))
            service = _opened(settings, Listening(listener, files, context, handshake_seconds=settings.head_seconds))
            if service is None:
                return 0
            closing.enter_context(contextlib.closing(service))
            listening = Listening(listener, files, context, handshake_seconds=settings.head_seconds)
            server = _Server(create_app(settings, service=service), service, listener, listening)
            # drained by now; the exit status says whether it went well
            return 0 if server.serve_until_stopped() else 1
    except ConfigurationError as error:
        print(f"neff-cache: {error}", file=sys.stderr)  # noqa: T201 - the operator's one sentence
        return 1


def _opened(settings: Settings, meanwhile: Listening) -> Service | None:
    """Open the service, and answer probes while it is waited for; None if a signal came first.

    Raises `ConfigurationError` for what will not come right by itself.
    """
    opening = Opening(settings)
    if not opening.done.wait(GRACE_SECONDS) and not listen_meanwhile(opening, meanwhile, settings):
        if not opening.done.wait(_FORCED_SECONDS / 2):
            # a try that hangs: nothing was begun that an end could harm
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
        service = opening.service
        if service is not None:
            service.close()
        return None
    return opening.result()


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
            listener.listen(BACKLOG)
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
    """uvicorn with our own listening socket, start line, signals and stop."""

    def __init__(self, app: ASGIApp, service: Service, listener: socket.socket, listening: Listening) -> None:
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
            )
        )
        self._service = service
        self._listener = listener
        self._listening = listening
        self._renewing: asyncio.Task[None] | None = None
        self._signals = self._cut = 0

    def serve_until_stopped(self) -> bool:
        """Serve; return whether the server ever became ready."""
        with contextlib.suppress(SystemExit, KeyboardInterrupt):
            self.run(sockets=[self._listener])
        return self.started and not self._cut

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002 - it is in `Listening`
        """Start, then say so: from this line on, connections are accepted."""
        # uvicorn opens none: it would give a TLS handshake no time limit of ours, and never renew a certificate
        await super().startup([])
        if self.started:
            self.servers = self._listening.servers
            await self._listening.open(self._new_protocol)
            seconds = self._service.settings.tls_reload_seconds
            self._renewing = asyncio.create_task(self._listening.keep_fresh(self._new_protocol, seconds))
            host, port = self._listener.getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            settings = self._service.settings
            where = settings.data_dir if settings.bucket_url is None else self._service.store.location
            scheme = self._listening.scheme
            # usual behind a proxy, and a mistake elsewhere
            open_to_all = "" if scheme == "https" or settings.is_loopback else "; not encrypted here, see --tls-cert"
            print(  # noqa: T201 - scripts wait for this line
                f"neff-cache: serving {scheme}://{shown}:{port} (data in {where}{open_to_all})", flush=True
            )

    def _new_protocol(self) -> asyncio.Protocol:
        # what uvicorn itself does for a socket of its own
        protocol = self.config.http_protocol_class
        return protocol(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)  # type: ignore[call-arg]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more, wake those who wait, then let running requests end."""
        self._service.readiness.draining = True
        if self._renewing is not None:
            self._renewing.cancel()
        if self.started:
            await self._listening.close(self._new_protocol)
        # who is woken and asks again finds another server
        self._service.waiters.close()
        await super().shutdown(sockets)
        if self.force_exit:
            for task in self.server_state.tasks:
                task.cancel()
            await self.lifespan.shutdown()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's signature
        """Begin to stop at the first signal, end at once at the second."""
        self._signals += 1
        seconds = self._service.settings.drain_seconds
        if self._signals == 1:
            self._service.readiness.draining = True
            _log.info("stopping", signal=signal.Signals(sig).name, running=len(self.server_state.tasks))
            asyncio.get_running_loop().call_later(seconds, self._stop)
            return
        self._cut = len(self.server_state.tasks)
        _log.warning("stopping at once", cut=self._cut)
        self.force_exit = True
        self._stop()
        # what a worker thread is stuck in must not hold up the end: nothing that was acknowledged depends on it
        last = threading.Timer(_FORCED_SECONDS, os._exit, (1,))
        last.daemon = True
        last.start()

    def _stop(self) -> None:
        self.should_exit = True

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
