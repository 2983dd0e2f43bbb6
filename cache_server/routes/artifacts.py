"""Hits and outputs, on plain ASGI.

``GET``/``HEAD /v1/{project}/{kind}/artifacts/{key}`` and
``HEAD``/``GET``/``PUT /v1/{project}/{kind}/entries/{key}/blobs/{sha256}``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from cache_server.access import Scope
from cache_server.address import Address
from cache_server.database import entries
from cache_server.errors import Problem
from cache_server.http.asgi import header, send_json
from cache_server.http.conditional import accepts_zstd, check_before_put, tag_of
from cache_server.http.outputs import Representation, fits_in_head, send_output, send_redirect
from cache_server.http.uploads import receive_output
from cache_server.stores.base import Blob
from client.names import check_digest
from client.wire import Entry

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import Receive, Send
    from starlette.types import Scope as AsgiScope

    from cache_server.service import Service
    from client.wire import Encoding

    Handler = Callable[[AsgiScope, Receive, Send], Awaitable[None]]

ARTIFACT_ROUTE = "/v1/{project}/{kind}/artifacts/{key}"
BLOB_ROUTE = "/v1/{project}/{kind}/entries/{key}/blobs/{sha256}"

_READS = ("GET", "HEAD")


class ArtifactLane:
    """Routes and serves hits and outputs."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def route(self, path: str) -> tuple[str, Handler] | None:
        """Return name and handler for a path that belongs here, else None."""
        match path.split("/"):
            case ["", "v1", project, kind, "artifacts", key]:

                async def artifact(scope: AsgiScope, receive: Receive, send: Send) -> None:
                    await self._artifact(scope, receive, send, Address.parse(project, kind, key))

                return ARTIFACT_ROUTE, artifact
            case ["", "v1", project, kind, "entries", key, "blobs", sha256]:

                async def blob(scope: AsgiScope, receive: Receive, send: Send) -> None:
                    address = Address.parse(project, kind, key)
                    await self._blob(scope, receive, send, address, check_digest(sha256, "digest"))

                return BLOB_ROUTE, blob
        return None

    async def _artifact(self, scope: AsgiScope, receive: Receive, send: Send, address: Address) -> None:
        _allow(scope["method"], *_READS)
        scope["principal"].require(Scope.READ, address.project, address.kind)
        service = self._service
        hit = await service.database.read(lambda connection: entries.hit(connection, address), service.workers.pool)
        service.metrics.count_lookup(address.project, address.kind, hit=hit is not None)
        if hit is None or hit.sha256 is None:
            raise Problem("not_found")
        if scope["method"] == "GET":
            service.usage.note(address)
        blob = Blob(address, hit.sha256, _encoding(hit.encoding))
        await self._send(scope, receive, send, Representation(blob, hit.size, hit.stored_size, hit.header))

    async def _blob(self, scope: AsgiScope, receive: Receive, send: Send, address: Address, sha256: str) -> None:
        _allow(scope["method"], *_READS, "PUT")
        if scope["method"] == "PUT":
            scope["principal"].require(Scope.WRITE, address.project, address.kind)
            await self._put(scope, receive, send, address, sha256)
            return
        scope["principal"].require(Scope.READ, address.project, address.kind)
        await self._send(scope, receive, send, await self._stored(address, sha256))

    async def _send(self, scope: AsgiScope, receive: Receive, send: Send, wanted: Representation) -> None:
        """Send the output, or say where in the store itself it can be had."""
        service = self._service
        if self._may_redirect(scope, wanted):
            location = await service.workers.run(self._elsewhere, wanted)
            if location is not None and fits_in_head(location):
                await send_redirect(send, location, wanted)
                return
        await send_output(scope, receive, send, wanted, store=service.store, workers=service.workers)

    def _may_redirect(self, scope: AsgiScope, wanted: Representation) -> bool:
        least = self._service.settings.redirect_bytes
        if least is None or wanted.stored_size < least or scope["method"] != "GET":
            return False
        # the store knows another ETag, and has no plain bytes of what is stored compressed
        if any(header(scope, name) is not None for name in (b"if-match", b"if-none-match", b"if-range")):
            return False
        return wanted.blob.encoding == "identity" or (
            header(scope, b"range") is None and accepts_zstd(header(scope, b"accept-encoding"))
        )

    def _elsewhere(self, wanted: Representation) -> str | None:
        store = self._service.store
        if store.stored_size(wanted.blob) != wanted.stored_size:
            return None  # missing or damaged: an answer of ours says what to do about it
        return store.presign(wanted.blob, self._service.settings.redirect_seconds)

    async def _stored(self, address: Address, sha256: str) -> Representation:
        """Return the output of a published entry: what was uploaded and not published is nobody's to read."""
        service = self._service
        document = await service.database.read(
            lambda connection: entries.document(connection, address), service.workers.pool
        )
        if document is None:
            raise Problem("not_found")
        for output in Entry.from_json(json.loads(document)).outputs:
            if output.sha256 == sha256:
                return Representation(Blob.of(address, output), output.size, output.stored_size)
        raise Problem("not_found")

    async def _put(self, scope: AsgiScope, receive: Receive, send: Send, address: Address, sha256: str) -> None:
        service, settings = self._service, self._service.settings
        declared = header(scope, b"content-length")
        size = int(declared) if declared is not None and declared.isdigit() else 0
        blob = Blob(address, sha256, _encoding(header(scope, b"content-encoding") or "identity"))
        await self._check_conditions(scope, blob)
        await service.workers.run(service.quotas.admit, address, size)
        with service.metrics.upload() as stored:
            received = await receive_output(
                scope,
                receive,
                blob,
                store=service.store,
                workers=service.workers,
                space=service.space,
                limit=settings.max_output_bytes,
                idle_seconds=settings.upload_idle_seconds,
                make_room=service.catalogue.make_room,
            )
            stored(received.stored_size, received.created)
        await send_json(
            send,
            201 if received.created else 200,
            {
                "sha256": sha256,
                "size": received.size,
                "encoding": received.blob.encoding,
                "stored_size": received.stored_size,
            },
        )

    async def _check_conditions(self, scope: AsgiScope, blob: Blob) -> None:
        if_match, if_none_match = header(scope, b"if-match"), header(scope, b"if-none-match")
        if if_match is None and if_none_match is None:
            return
        stored = await self._service.workers.run(self._service.store.stored_size, blob)
        tag = None if stored is None else tag_of(blob.sha256, compressed=blob.encoding == "zstd")
        check_before_put(if_match, if_none_match, tag)


def _encoding(name: str) -> Encoding:
    match name.lower():
        case "identity":
            return "identity"
        case "zstd":
            return "zstd"
    raise Problem("unsupported_encoding", headers={"Accept-Encoding": "zstd"})


def _allow(method: str, *allowed: str) -> None:
    if method not in allowed:
        raise Problem("method_not_allowed", headers={"Allow": ", ".join(allowed)})
