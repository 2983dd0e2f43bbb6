"""What the answers of a cache server mean: JSON, problems, and the bytes of outputs."""

from __future__ import annotations

import hashlib
import http.client
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from client import encoding
from client.errors import Denied, FormatError, LeaseLost, Refused, TransportError, Unreachable, WireError
from client.transports import wanted
from client.transports.base import Damaged
from client.wire import ENTRY_HEADER, Entry

if TYPE_CHECKING:
    from client.transports.connection import Answer
    from client.transports.timed_socket import Pace
    from client.wire import Output

NOT_FOUND = 404
PROBLEM_JSON = "application/problem+json"
MAX_JSON = 1 << 20
"""Bytes of an answer that holds no entry."""
MAX_ENTRY_JSON = 4 << 20
MAX_MANY = 16 << 20
"""Bytes of an answer about a thousand entries, which only tools ask for."""
_MAX_PROBLEM = 64 << 10
_MAX_SENTENCE = 300
_DENIED = {401, 403}
_REFUSED = {400, 405, 409, 411, 412, 413, 415, 416, 421, 422, 429, 507}


def read_json(answer: Answer, limit: int = MAX_JSON) -> Any:
    """Return the JSON value of a successful answer of at most ``limit`` bytes; raises HTTPException for anything else.

    A value takes up to twenty times as much memory as its text.
    """
    raw = answer.read_small(limit)
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        raise http.client.HTTPException("an answer that is no JSON, so not from a cache server") from None


def is_absent(answer: Answer) -> bool:
    """Return whether the cache server says that something is not there; a stranger's 404 does not count."""
    if answer.status != NOT_FOUND or answer.header("Content-Type").partition(";")[0].strip() != PROBLEM_JSON:
        return False
    answer.read_small(_MAX_PROBLEM)
    return True


def problem(answer: Answer, what: str) -> TransportError:
    """Return what an unsuccessful answer to ``what`` (method and address) means."""
    name, detail = "", ""
    if answer.header("Content-Type").partition(";")[0].strip() == PROBLEM_JSON:
        with suppress(http.client.HTTPException):  # the status alone says enough
            value = read_json(answer, _MAX_PROBLEM)
            if isinstance(value, dict):
                name = _printable(str(value.get("name") or ""))
                detail = _printable(str(value.get("detail") or value.get("title") or ""))
    sentence = (
        f"{what} was answered {answer.status}" + (f" ({name})" if name else "") + (f": {detail}" if detail else "")
    )
    # 404 comes here where it cannot mean that an entry is absent: there is no such project for this caller.
    if answer.status in _DENIED or (answer.status == NOT_FOUND and name):
        return Denied(f"{sentence}; see NEURON_CACHE_TOKEN and NEURON_CACHE_PROJECT")
    if name == "lease_lost":
        return LeaseLost(sentence)
    if answer.status in _REFUSED:
        return Refused(sentence, status=answer.status, name=name)
    return Unreachable(sentence)


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text[:_MAX_SENTENCE])


def entry_in_header(answer: Answer) -> Entry | None:
    """Return the entry that an artifact's answer carries, None if it was too large for a header."""
    text = answer.header(ENTRY_HEADER)
    if not text:
        return None
    try:
        return Entry.from_header(text)
    except WireError as error:
        raise Unreachable(f"the server's {ENTRY_HEADER} header cannot be read: {error}") from error


def read_output(answer: Answer, entry: Entry, output: Output, *, stored: bool, pace: Pace | None = None) -> bytes:
    """Return the plain bytes of an output, hashed while they are read.

    ``stored``: the answer comes from the object store itself, which sends what is stored without saying how. ``pace``:
    how fast it has to come. Raises `Damaged` for other bytes than the entry names, HTTPException for a body that breaks
    off, TimeoutError for one that is too slow.
    """
    wanted.check_room(entry, output)
    response = answer.begin_body(pace)
    length = response.length
    coding = answer.header("Content-Encoding") or (output.encoding if stored else "identity")
    if coding not in {"zstd", "identity"}:
        raise http.client.HTTPException(f"an answer in the encoding {_printable(coding)!r}, which was not asked for")
    if length is not None and length != (output.size if coding == "identity" else output.stored_size):
        raise Damaged(entry, output.sha256, f"nothing: the answer holds {length} bytes")
    digest = hashlib.sha256()
    fault = "nothing: the answer ends too early"
    try:
        if coding == "zstd":
            source = encoding.Limited(response, output.stored_size)
            plain: bytes | None = encoding.read_decoded(source, output.size, digest.update)
        else:
            plain = encoding.read_exactly(response.readinto, output.size, digest.update)
    except FormatError as error:
        plain, fault = None, f"nothing: {error}"
    if plain is None and response.length:
        raise http.client.HTTPException(f"an answer that breaks off {response.length} bytes before its end")
    if not answer.ends():  # only then the connection may be used again
        plain, fault = None, f"nothing: the answer goes on after {output.size} bytes"
    if plain is None:
        raise Damaged(entry, output.sha256, fault)
    if digest.hexdigest() != output.sha256:
        raise Damaged(entry, output.sha256, digest.hexdigest())
    return plain
