"""Promotion: an entry is copied to another project, with a record that whoever let it in has signed.

Outputs are copied byte for byte and hashed on the way, never linked: damage to one copy must not be damage to both.
The record goes into the copy's own entry.json, beside the signed members; that is written last, as in any publish.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from cache_server.address import Address
from cache_server.compression import PlainBytes
from cache_server.errors import Problem
from cache_server.stores.base import Blob, StoreError
from client.errors import FormatError, SignatureError
from client.signing.statements import entry_digest
from client.wire import MAX_PROMOTIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cache_server.access import Actor
    from cache_server.locking import KeyLocks
    from cache_server.services.catalogue import Catalogue
    from cache_server.services.publishing import Publishing
    from cache_server.services.quotas import Quotas
    from cache_server.services.reservation import Space
    from cache_server.services.suspicion import Suspicion
    from cache_server.services.trust import Trust
    from cache_server.stores.base import Store
    from client.signing.statements import Promotion
    from client.wire import Entry, Json, Output


class Promoted(NamedTuple):
    """``promoted``; ``present`` if the entry stood there already; ``refused`` with a row of the error table."""

    state: str
    name: str = ""
    detail: str = ""

    def to_json(self, record: Promotion) -> Json:
        """Return what is answered about one record."""
        value: Json = {"kind": str(record.kind), "key": record.key, "state": self.state}
        return {**value, "name": self.name, "detail": self.detail} if self.state == "refused" else value


class Promoting:
    """Promote entries. Blocks for as long as copying takes: worker threads only."""

    def __init__(
        self,
        *,
        store: Store,
        locks: KeyLocks,
        catalogue: Catalogue,
        publishing: Publishing,
        suspicion: Suspicion,
        trust: Trust,
        quotas: Quotas,
        space: Space,
    ) -> None:
        self._store = store
        self._locks = locks
        self._catalogue = catalogue
        self._publishing = publishing
        self._suspicion = suspicion
        self._trust = trust
        self._quotas = quotas
        self._space = space

    def promote(self, record: Promotion, *, by: Actor) -> Promoted:
        """Let the entry of a record into the project it names. What is refused leaves nothing there."""
        try:
            return self._promote(record, by)
        except Problem as problem:
            return Promoted("refused", problem.kind.name, str(problem))

    def _promote(self, record: Promotion, by: Actor) -> Promoted:
        source = Address(record.source, record.kind, record.key)
        target = Address(record.target, record.kind, record.key)
        entry = self._settled(source)
        if entry is None:
            raise Problem("not_found", f"there is no entry {source}, or it was set aside as damaged")
        _check_record(record, entry)
        copy = replace(entry, project=record.target, promotions=(*entry.promotions, record.to_json()))
        self._trust.admit_promotion(record)
        self._trust.admit(copy)
        standing = self._settled(target)
        if standing is None:
            self._quotas.admit(target, sum(output.stored_size for output in copy.outputs))
            standing = self._copied(source, target, copy, by)
            if standing is None:
                return Promoted("promoted")
        if entry_digest(standing) != record.entry_sha256:
            raise Problem("other_entry", f"another entry stands under {target}, and the first one stays")
        return Promoted("present")

    def _settled(self, address: Address) -> Entry | None:
        with self._locks.hold(address):
            return self._catalogue.settle(address)

    def _copied(self, source: Address, target: Address, copy: Entry, by: Actor) -> Entry | None:
        """Copy the outputs, then publish; return the entry that was first, if one was meanwhile."""
        try:
            for output in copy.outputs:
                self._copy(source, target, output, by)
            published = self._publishing.publish(target, copy, by=by, action="entry.promote")
        except BaseException:
            self._drop(target, copy)
            raise
        return None if published.created else published.entry

    def _copy(self, source: Address, target: Address, output: Output, by: Actor) -> None:
        opened = self._store.open_output(Blob.of(source, output))
        if opened is None:
            raise Problem("not_found", f"{output.name} of {source} was removed meanwhile")
        blob = Blob.of(target, output)
        upload, room = self._store.begin_upload(blob), self._space.reservation()
        try:
            room.cover(max(output.stored_size, 1))
            for chunk in _checked(opened.chunks(), output):
                room.will_write(len(chunk))
                upload.write(chunk)
                room.wrote(len(chunk))
            self._catalogue.make_room(blob, output.stored_size)
            upload.commit(blob)
        except FormatError as error:
            verdict = self._suspicion.suspect(source, output.sha256, by=by)
            if verdict == "sound":
                raise StoreError(f"{output.name} of {source} was not sent as it is stored: {error}") from error
            raise Problem("wrong_digest", f"{output.name} of {source} is damaged ({verdict}): {error}") from error
        finally:
            upload.abort()
            room.release()
            opened.close()

    def _drop(self, target: Address, copy: Entry) -> None:
        """Remove what was copied, unless an entry stands there by now."""
        with self._locks.hold(target):
            if self._catalogue.settle(target) is None:
                for output in copy.outputs:
                    self._store.remove(target, Blob.of(target, output).file_name)


def _checked(chunks: Iterable[bytes], output: Output) -> Iterator[bytes]:
    """Yield stored bytes as they are; raises `FormatError` at the end if they are not those of ``output``."""
    plain = PlainBytes(output.encoding, limit=output.size)
    digest, size = hashlib.sha256(), 0
    for chunk in chunks:
        for piece in plain.feed(chunk):
            digest.update(piece)
            size += len(piece)
        yield chunk
    plain.finish()
    if (digest.hexdigest(), size) != (output.sha256, output.size):
        raise FormatError("its bytes are not those that the entry names")


def _check_record(record: Promotion, entry: Entry) -> None:
    try:
        fits = record.is_of(entry)
    except SignatureError as error:
        raise Problem("signature_invalid", str(error)) from error
    if not fits:
        raise Problem("other_entry", "the record is about another entry than the one that stands under the key now")
    if len(entry.promotions) >= MAX_PROMOTIONS:
        raise Problem("invalid", f"an entry is promoted at most {MAX_PROMOTIONS} times")
