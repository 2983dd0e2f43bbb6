"""What must be true of an entry before this server lets it stand. Used by publish and by adoption alike."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from cache_server.errors import Problem
from cache_server.stores.base import Blob
from client.errors import WireError
from client.key import check_document
from client.names import MAIN_OUTPUT, Kind

if TYPE_CHECKING:
    from cache_server.address import Address
    from cache_server.stores.base import Store
    from client.wire import Entry, Json

_DIGEST_NAME = re.compile(r"[0-9a-f]{32}")
_FOREIGN_NAMES = {
    "npc": re.compile(r"neuronxcc-[0-9A-Za-z.+_-]+/MODULE_[0-9A-Za-z._]+\+[0-9a-f]{8}"),
    "libtorch-lite": _DIGEST_NAME,
    "torchneuron": _DIGEST_NAME,
}
_FOREIGN_MEMBERS = ("layout", "name", "compiler_version", "target")


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
        _check_foreign(document)
    elif entry.output() is None:
        raise Problem("invalid", f"an entry of kind {address.kind} holds an output called {MAIN_OUTPUT}")


def _check_foreign(document: Json) -> None:
    # the name becomes a path on some client's disk: only names of that cache's own shape may pass
    for member in _FOREIGN_MEMBERS:
        if not isinstance(document.get(member), str):
            raise Problem("invalid", f"a foreign key document holds a text called {member!r}")
    pattern = _FOREIGN_NAMES.get(document["layout"])
    if pattern is None:
        raise Problem("invalid", f"foreign layout {document['layout']!r}: expected one of {', '.join(_FOREIGN_NAMES)}")
    if not pattern.fullmatch(document["name"]):
        raise Problem("invalid", f"{document['name']!r} is no name in the layout {document['layout']}")


def missing_outputs(store: Store, address: Address, entry: Entry) -> list[str]:
    """Return the names of outputs that are not stored with the size the entry states."""
    return [
        output.name for output in entry.outputs if store.stored_size(Blob.of(address, output)) != output.stored_size
    ]
