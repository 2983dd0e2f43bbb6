"""The one table of errors a request can end in, and the exception that names a row of it.

Every error answer is ``application/problem+json`` (RFC 9457) with the row's name, status and sentence, and a detail
where there is something to add. Names are part of the interface: clients act on them, metrics count them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from client.cleaning import clean
from client.errors import NeffCacheError

if TYPE_CHECKING:
    from collections.abc import Mapping

PROBLEM_JSON = "application/problem+json"


@dataclass(frozen=True, slots=True)
class ErrorKind:
    """One row: a stable name, the HTTP status, and a sentence that is safe to show to anybody."""

    name: str
    status: int
    sentence: str


def _table(*rows: tuple[str, int, str]) -> Mapping[str, ErrorKind]:
    return {name: ErrorKind(name, status, sentence) for name, status, sentence in rows}


ERRORS = _table(
    ("short_body", 400, "The body ended before the length it announced."),
    ("broken_body", 400, "The body is not what its encoding says it is."),
    ("unauthorized", 401, "This call needs a bearer token that this server knows."),
    ("forbidden", 403, "This token has rights on the project, but not this one."),
    ("not_found", 404, "There is nothing here that this token may see."),
    ("method_not_allowed", 405, "This address does not take this method."),
    ("upload_timeout", 408, "The body stood still for too long, or came far too slowly."),
    ("blob_missing", 409, "An output of this entry is not stored: upload it again, then publish."),
    ("lease_lost", 409, "This lease has ended: it ran out, was given back, or its key was published or taken over."),
    ("other_entry", 409, "Another entry stands under this key than the one that is meant."),
    ("precondition_failed", 412, "What is stored is not what If-Match, or is what If-None-Match names."),
    ("too_large", 413, "The body is larger than this server accepts."),
    ("unsupported_encoding", 415, "Bodies are sent plain or with Content-Encoding: zstd."),
    ("unsupported_type", 415, "JSON bodies are sent with Content-Type: application/json."),
    ("range_not_satisfiable", 416, "The range lies outside the output."),
    ("wrong_host", 421, "This server does not answer to that Host name; see --allowed-host."),
    ("invalid", 422, "The request breaks the interface."),
    ("wrong_digest", 422, "The body does not hash to the digest in its address."),
    ("wrong_key", 422, "The key document is not one of this kind whose hash is the key."),
    ("signature_required", 422, "What is published in this project is signed, and this is not."),
    ("signature_invalid", 422, "The signature is not one of these bytes by a key that this project trusts."),
    ("too_many_leases", 429, "This token holds as many leases as it may; try again later."),
    ("throttled", 429, "Too many requests of this kind at once; try again later."),
    ("internal", 500, "The server failed; its log has the request id."),
    ("busy", 503, "Another request holds this key; try again."),
    ("store_unavailable", 503, "The object store did not answer as it should; nothing is known about the entry."),
    ("not_ready", 503, "The server cannot serve now."),
    ("quota_exceeded", 507, "The project has no room left within its quota; reads go on."),
    ("store_full", 507, "The object store has no room left; reads go on."),
)


class Problem(NeffCacheError):  # noqa: N818 - named for what the answer holds (RFC 9457)
    """A request ends in the row of `ERRORS` called ``name``; ``detail`` says what was wrong with this one."""

    def __init__(self, name: str, detail: str = "", *, headers: Mapping[str, str] | None = None) -> None:
        self.kind = ERRORS[name]
        self.detail = clean(detail, lines=False)
        self.headers = dict(headers or {})
        super().__init__(detail or self.kind.sentence)

    def to_json(self, request_id: str) -> dict[str, Any]:
        """Return the answer's body."""
        value: dict[str, Any] = {
            "type": f"urn:neff-cache:problem:{self.kind.name}",
            "title": self.kind.sentence,
            "status": self.kind.status,
            "name": self.kind.name,
            "request_id": request_id,
        }
        if self.detail:
            value["detail"] = self.detail
        return value
