"""Opening a service whose database or store may be away: the server listens, says what it waits for, and goes on.

What may come back is waited for: no connection, a store that throttles, a database that starts. What an operator must
mend (a wrong password, a bucket that does not exist, a folder that is not ours) ends the start with one sentence.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import threading
import time
from typing import TYPE_CHECKING

import structlog
import uvicorn

from cache_server.clock import rfc3339
from cache_server.errors import Problem
from cache_server.http.asgi import send_body, send_problem
from cache_server.http.protocol import BoundedProtocol
from cache_server.service import AwayError, Service

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from starlette.types import Receive, Scope, Send

    from cache_server.http.listening import Listening
    from cache_server.settings import Settings

GRACE_SECONDS = 1.0
"""For how long a start is waited for before anybody is told that the server is not ready."""
AGAIN_SECONDS = 1.0
"""Between two tries: one begins a moment after what was away is there."""
SAY_SECONDS = 30.0
"""How often the log says what is waited for."""
_RETRY_AFTER = "5"

_log = structlog.get_logger("cache_server")


class Opening:
    """Opens a service on a thread of its own, again and again while something is away."""

    def __init__(
        self,
        settings: Settings,
        *,
        open_service: Callable[[Settings], Service] = Service.open,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._open_service = open_service
        self._now = now
        self._stop = threading.Event()
        self.done = threading.Event()
        self.service: Service | None = None
        self._error: BaseException | None = None
        threading.Thread(target=self._run, name="neff-cache-opening", daemon=True).start()

    def _run(self) -> None:
        try:
            self.service = self._tried()
        except BaseException as error:  # noqa: BLE001 - raised again by `result`, on the thread that waits
            self._error = error
        finally:
            self.done.set()

    def _tried(self) -> Service | None:
        since = said = self._now()
        reason = ""
        while not self._stop.is_set():
            try:
                service = self._open_service(self._settings)
            except AwayError as error:
                now = self._now()
                if str(error) != reason or now - said >= SAY_SECONDS:
                    reason, said = str(error), now
                    _log.warning("not serving yet", waiting_for=reason, since=rfc3339(since))
                self._stop.wait(AGAIN_SECONDS)
                continue
            if reason:
                _log.info("what was away is there", waited_seconds=round(self._now() - since, 1))
            return service
        return None

    def stop(self) -> None:
        """Try no more; a try that goes on is left alone."""
        self._stop.set()

    def result(self) -> Service | None:
        """Return the service once it is `done`, None if it was stopped; raises what stopped it from opening."""
        if self._error is not None:
            raise self._error
        return self.service


def listen_meanwhile(opening: Opening, listening: Listening, settings: Settings) -> bool:
    """Answer probes until the service is there or cannot be; False if a signal asked the server to stop before."""
    server = _Meanwhile(opening, listening, settings)
    with contextlib.suppress(SystemExit, KeyboardInterrupt):
        server.run(sockets=[])
    return not server.asked_to_stop


async def not_serving(scope: Scope, _receive: Receive, send: Send) -> None:
    """Answer a request while there is no service: the process lives, and is not ready."""
    if scope["type"] != "http":
        return
    close = (b"connection", b"close")
    if scope["path"] == "/healthz":
        await send_body(send, 200, [(b"content-type", b"text/plain; charset=utf-8"), close], b"ok")
        return
    problem = Problem("not_ready", headers={"Retry-After": _RETRY_AFTER, "Connection": "close"})
    await send_problem(send, problem, secrets.token_hex(8), method=scope["method"])


class _Meanwhile(uvicorn.Server):
    """uvicorn on the socket that the service will use, for as long as there is none."""

    def __init__(self, opening: Opening, listening: Listening, settings: Settings) -> None:
        super().__init__(
            uvicorn.Config(
                not_serving,
                loop="uvloop",
                http=BoundedProtocol.within(settings.head_seconds),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=1,
            )
        )
        self._opening = opening
        self._listening = listening
        self.asked_to_stop = False

    async def startup(self, sockets: list[asyncio.Server] | None = None) -> None:  # type: ignore[override] # noqa: ARG002 - it is in `Listening`
        """Accept connections."""
        await super().startup([])
        self.servers = self._listening.servers
        await self._listening.open(self._new_protocol)
        self._watching = asyncio.create_task(self._until_opened())

    def _new_protocol(self) -> asyncio.Protocol:
        protocol = self.config.http_protocol_class
        return protocol(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)  # type: ignore[call-arg]

    async def _until_opened(self) -> None:
        while not self._opening.done.is_set():  # noqa: ASYNC110 - set on a thread
            await asyncio.sleep(0.05)
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's signature
        """Stop at once: nothing has begun."""
        _log.info("stopping", signal=signal.Signals(sig).name, running=0)
        self.asked_to_stop = self.should_exit = True
        self._opening.stop()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on a signal, and do not raise it again: a stop that was asked for is no failure."""
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT)
        for number in signals:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)
