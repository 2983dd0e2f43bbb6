"""What every transport does with outputs before it stores them: check them, and choose how they are stored."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from client import encoding
from client.errors import Refused, WireError
from client.key import check_document
from client.names import MAIN_OUTPUT, Kind
from client.wire import Output

if TYPE_CHECKING:
    from collections.abc import Mapping

    from client.wire import Entry


def refused(sentence: str, name: str = "invalid") -> Refused:
    """Return the error for what no store accepts, named and numbered as a server would."""
    return Refused(sentence, status=422, name=name)


def check_entry(entry: Entry, outputs: Mapping[str, bytes], project: str) -> None:
    """Raise `client.errors.Refused` unless the key is the hash of the document and ``outputs`` are those named."""
    if entry.project != project:
        raise refused(f"the entry {entry.key} is of project {entry.project!r}, this transport of {project!r}")
    if entry.key_document is None:
        raise refused(f"the entry {entry.key} is published with its key document, which is missing")
    if entry.output() is None and entry.kind is not Kind.FOREIGN:
        raise refused(f"the entry {entry.key} holds no output called {MAIN_OUTPUT}")
    try:
        check_document(entry.key_document, kind=entry.kind, key=entry.key)
    except WireError as error:
        raise refused(str(error), "wrong_key") from error
    named = {output.name: output.size for output in entry.outputs}
    given = {name: len(data) for name, data in outputs.items()}
    if named != given:
        raise refused(f"the outputs given are not those that the entry {entry.key} names: {given}, not {named}")


def as_stored(entry: Entry, output: Output, data: bytes) -> tuple[Output, bytes]:
    """Return ``output`` with its encoding decided, and its bytes in that encoding.

    A signature covers the encoding, so that a signed entry is stored as it says; raises `client.errors.Refused` if our
    zstd makes a frame of another size than was signed.
    """
    if entry.signature is not None:
        packed = data if output.encoding == "identity" else encoding.encode(data)
        if len(packed) != output.stored_size:
            raise refused(f"{output.name} of {entry.key} was signed as a zstd frame that cannot be made again here")
        return output, packed
    if encoding.worth_encoding(data):
        packed = encoding.encode(data)
        if len(data) > encoding.most_plain(len(packed)):
            return Output(output.name, output.sha256, output.size), data
        return replace(output, encoding="zstd", stored_size=len(packed)), packed
    return Output(output.name, output.sha256, output.size), data
