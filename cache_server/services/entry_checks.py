"""What must be true of an entry before this server lets it stand. Used by publish and by adoption alike."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from cache_server.compression import stated_size
from cache_server.errors import Problem
from cache_server.services.verification import fault
from cache_server.stores.base import Blob
from client.errors import WireError
from client.foreign.names import ForeignName
from client.key import check_document
from client.names import MAIN_OUTPUT, Kind

if TYPE_CHECKING:
    from cache_server.address import Address
    from cache_server.stores.base import Store
    from client.wire import Entry


def check_entry(address: Address, entry: Entry) -> None:
    """Raise `Problem` unless ``entry`` belongs at ``address``: the same names, a document that hashes to the key."""
    if (entry.project, entry.kind, entry.key) != tuple(address):
        raise Problem("invalid", f"the entry names {entry.project}/{entry.kind}/{entry.key}, its address {address}")
    try:
        json.dumps(entry.to_json(), ensure_ascii=False, allow_nan=False).encode()
    except ValueError as error:
        raise Problem("invalid", "the entry holds a number or a text that JSON cannot carry") from error
    if entry.key_document is None:
        raise Problem("invalid", "an entry is published with its key document")
    try:
        document = check_document(entry.key_document, kind=address.kind, key=address.key)
    except WireError as error:
        raise Problem("wrong_key", str(error)) from error
    if address.kind is Kind.FOREIGN:
        try:
            ForeignName.of(document)  # the name becomes a path on some client's disk
        except WireError as error:
            raise Problem("invalid", str(error)) from error
    elif entry.output() is None:
        raise Problem("invalid", f"an entry of kind {address.kind} holds an output called {MAIN_OUTPUT}")


def missing_outputs(store: Store, address: Address, entry: Entry) -> list[str]:
    """Return the names of outputs that are not stored with the size the entry states."""
    return [
        output.name for output in entry.outputs if store.stored_size(Blob.of(address, output)) != output.stored_size
    ]


def wrong_sizes(store: Store, address: Address, entry: Entry) -> dict[str, str]:
    """Return what is wrong with the plain sizes that the entry states, by output; all must be stored.

    Of an identity-encoded output the stored size is the plain one. A zstd frame states it, as those of our clients do;
    one that does not is decoded.
    """
    wrong = {}
    for output in entry.outputs:
        if output.encoding == "identity":
            continue
        size = stated_size(store, Blob.of(address, output))
        found = fault(store, address, output) if size is None else None
        if size not in {None, output.size}:
            found = f"it unpacks to {size} bytes"
        if found is not None:
            wrong[output.name] = (
                f"the entry says that {output.name} is {output.size} bytes without its encoding: {found}"
            )
    return wrong
