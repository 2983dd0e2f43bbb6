"""A server inside the test's process, driven by httpx over ASGI, and entries to put into it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx

from cache_server.address import Address
from cache_server.app import create_app
from cache_server.service import Service
from cache_server.settings import Settings
from cache_server.stores.local import MARKER, SERVER_LOCK
from client.key import key_of
from client.names import MAIN_OUTPUT, Kind
from client.wire import Entry, Output, Producer
from tests.fakes.waiting import HANG_SECONDS

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from concurrent.futures import Future
    from pathlib import Path

    from sqlalchemy import Connection

TOKEN = "t" * 40


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def document(name: str = "a", kind: str = "graph") -> dict[str, Any]:
    return {"schema": 1, "kind": kind, "ir": {"sha256": sha256(name.encode())}, "flags": [name]}


@dataclass
class Built:
    """An entry and the bytes of its outputs as they are sent."""

    entry: Entry
    stored: dict[str, bytes]

    @property
    def address(self) -> Address:
        return Address(self.entry.project, self.entry.kind, self.entry.key)

    @property
    def path(self) -> str:
        return f"/v1/{self.entry.project}/{self.entry.kind}/entries/{self.entry.key}"

    @property
    def artifact(self) -> str:
        return f"/v1/{self.entry.project}/{self.entry.kind}/artifacts/{self.entry.key}"

    @property
    def lease(self) -> str:
        return f"/v1/{self.entry.project}/{self.entry.kind}/leases/{self.entry.key}"

    def blob(self, name: str = MAIN_OUTPUT) -> str:
        output = self.entry.output(name)
        assert output is not None
        return f"{self.path}/blobs/{output.sha256}"


def build(
    name: str = "a",
    neff: bytes = b"neff" * 100,
    *,
    log: bytes | None = b"compiled",
    project: str = "default",
    kind: Kind = Kind.GRAPH,
    packed: bytes | None = None,
    key_document: dict[str, Any] | None = None,
) -> Built:
    """Build an entry; ``packed`` is the zstd frame of ``neff`` if it is stored as one."""
    wanted = key_document or document(name, str(kind))
    main = Output(MAIN_OUTPUT, sha256(neff), len(neff))
    if packed is not None:
        main = Output(MAIN_OUTPUT, sha256(neff), len(neff), "zstd", len(packed))
    outputs, stored = [main], {MAIN_OUTPUT: packed or neff}
    if log is not None:
        outputs.append(Output("compile.log", sha256(log), len(log)))
        stored["compile.log"] = log
    entry = Entry(
        project=project,
        kind=kind,
        key=key_of(wanted),
        outputs=tuple(outputs),
        created="2026-11-30T00:00:00Z",
        compile_seconds=12.5,
        producer=Producer("neff-cache/test", "host", "label"),
        key_document=wanted,
    )
    return Built(entry, stored)


@dataclass
class FakeClock:
    """The database's clock, moved by hand."""

    now: float = 1_800_000_000.0

    def __call__(self, _connection: Connection) -> float:
        return self.now


@dataclass
class InProcess:
    """A server. Requests run on its own event loop; `start` returns before the answer is there."""

    folder: Path
    clock: FakeClock | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    template: Path | None = None
    """A database with its tables made, which spares each test the migrations."""

    def __post_init__(self) -> None:
        data = self.folder / "data"
        if self.template is not None and not data.exists():
            data.mkdir(parents=True)
            shutil.copyfile(self.template, data / "cache.db")
        options = {"data_dir": data, "bootstrap_token": TOKEN, "access_log": False, **self.settings}
        self.service = Service.open(Settings(**options), clock=self.clock)
        self.app = create_app(self.service.settings, service=self.service)
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        self._client = httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=HANG_SECONDS)

    @property
    def store_root(self) -> Path:
        return self.service.settings.store_path()

    def start(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.start(work).result(HANG_SECONDS)

    def send(self, method: str, path: str, *, token: str | None = TOKEN, **options: Any) -> Future[Any]:
        headers = dict(options.pop("headers", {}))
        if token is not None:
            headers.setdefault("Authorization", f"Bearer {token}")
        return self.start(self._client.request(method, path, headers=headers, **options))

    def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        found = self.send(method, path, **options).result(HANG_SECONDS)
        assert isinstance(found, httpx.Response)
        return found

    def upload(self, built: Built) -> None:
        for output in built.entry.outputs:
            headers = {"Content-Encoding": "zstd"} if output.encoding == "zstd" else {}
            answer = self.call("PUT", built.blob(output.name), content=built.stored[output.name], headers=headers)
            assert answer.status_code in {200, 201}, answer.text

    def publish(self, built: Built) -> httpx.Response:
        self.upload(built)
        return self.call("PUT", built.path, json=built.entry.to_json())

    def ask(self, built: Built, **body: Any) -> dict[str, Any]:
        answer = self.send_ask(built, **body).result(HANG_SECONDS)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def send_ask(self, built: Built, *, host: str = "h", token: str = TOKEN, **body: Any) -> Future[Any]:
        body = {"holder": {"host": host, "pid": 1, "rank": None, "label": ""}, **body}
        return self.send("POST", built.lease, json=body, token=token)

    def waiting(self, count: int = 1) -> None:
        """Return once ``count`` requests wait for a lease."""

        async def until() -> None:
            async with asyncio.timeout(10):
                while self.service.waiters.count < count:  # noqa: ASYNC110 - the server has no event for tests
                    await asyncio.sleep(0.005)

        self.run(until())

    def raw(
        self, method: str, path: str, messages: list[dict[str, Any]], headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Drive the application with exactly these messages; return status and body (status 0: no answer)."""
        pending = list(messages)
        sent: list[dict[str, Any]] = []
        never = asyncio.Event()

        async def receive() -> dict[str, Any]:
            if pending:
                return pending.pop(0)
            await never.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            await asyncio.sleep(0)
            sent.append(message)

        given = {"host": "localhost", "authorization": f"Bearer {TOKEN}", **(headers or {})}
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "scheme": "http",
            "http_version": "1.1",
            "headers": [(name.encode(), value.encode()) for name, value in given.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }
        self.run(self.app(scope, receive, send))
        status = next((message["status"] for message in sent if message["type"] == "http.response.start"), 0)
        return status, b"".join(message.get("body", b"") for message in sent)

    def files(self) -> list[str]:
        """All files of the store, relative to its root, without its lock and its marker."""
        root = self.store_root
        return sorted(
            str(path.relative_to(root))
            for path in root.rglob("*")
            if path.is_file() and path.name not in {SERVER_LOCK, MARKER}
        )

    def output_path(self, built: Built, name: str = MAIN_OUTPUT) -> Path:
        output = built.entry.output(name)
        assert output is not None
        suffix = ".zst" if output.encoding == "zstd" else ""
        return self.store_root / built.address.path / f"{output.sha256}{suffix}"

    def entry_path(self, built: Built) -> Path:
        return self.store_root / built.address.path / "entry.json"

    def close(self) -> None:
        async def shut() -> None:
            self.service.waiters.close()
            await self._client.aclose()

        self.run(shut())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(HANG_SECONDS)
        self.loop.close()
        self.service.close()


def problem(answer: httpx.Response) -> tuple[int, str]:
    """Return status and name of an error answer, after checking its form."""
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    value = json.loads(answer.content)
    assert value["status"] == answer.status_code
    assert {"type", "title", "request_id"} <= set(value)
    return answer.status_code, value["name"]
