"""What each call can be answered with: a row for every route, and the errors that many share.

FastAPI knows paths, parameters and the bodies it checks; the rest of the description is here, in one table, so that a
route without a row is found by a test and the errors of a call can be compared with those of its neighbours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from cache_server.errors import ERRORS, PROBLEM_JSON
from cache_server.interface.schemas import Schema, ref

if TYPE_CHECKING:
    from collections.abc import Iterable

Bodies: TypeAlias = "dict[int, str]"
"""By status: the component that a JSON answer is, a media type, or ``""`` for no body."""

_GUARDED = ("wrong_host", "unauthorized", "throttled", "internal", "not_ready", "not_found", "invalid")
_BODY = ("short_body", "upload_timeout", "too_large")
_JSON = (*_BODY, "unsupported_type")
_READ = ("forbidden",)
_KEY = (*_READ, "store_unavailable", "busy")
_CHANGE = (*_READ, "store_unavailable", "store_full")
_PUBLISH = (*_KEY, "store_full", "quota_exceeded")
_SIGNED = ("signature_required", "signature_invalid")
_RESPONSES = "#/components/responses/"
OPEN = frozenset({"/healthz", "/readyz", "/docs", "/openapi.json"})
"""Paths that need no token."""


class Row(NamedTuple):
    """A call: its name, the scope it needs, its good answers, its errors beside those of every call."""

    name: str
    scope: str
    good: Bodies
    errors: tuple[str, ...] = ()
    body: Schema | None = None
    """The schema of a body that FastAPI knows only as an object, or reads as bytes: then it may be empty."""
    media_type: str = "application/json"


_ENTRY = "/v1/{project}/{kind}/entries/{key}"
_LEASE = "/v1/{project}/{kind}/leases/{key}"
_PINS = "/v1/{project}/pins"
_PIN_ENTRY = _PINS + "/entries/{kind}/{key}"
_PIN_LABEL = _PINS + "/labels/{label}"
_PIN_PLAN = _PINS + "/plans/{name}"
_PLAN = "/v1/{project}/plans/{name}"
_TRUST = "/v1/{project}/trust"
_TRUST_KEY = _TRUST + "/keys/{key_id}"
_ADMIN = "/admin/v1"
_QUOTA = _ADMIN + "/projects/{project}/quota"
_RULES = _ADMIN + "/projects/{project}/rules"

NDJSON = "application/x-ndjson"
TAR = "application/x-tar"
METRICS = "text/plain"
HTML = "text/html"

ANSWERS: dict[str, Row] = {
    f"GET {_ENTRY}": Row("read_entry", "read", {200: "Entry"}, _KEY),
    f"PUT {_ENTRY}": Row(
        "publish_entry",
        "write",
        {200: "Entry", 201: "Entry"},
        (*_PUBLISH, *_JSON, *_SIGNED, "blob_missing", "wrong_key"),
        ref("Entry"),
    ),
    f"DELETE {_ENTRY}": Row("delete_entry", "delete", {204: ""}, _KEY),
    f"POST {_ENTRY}/suspect": Row("suspect_output", "read", {200: "Verdict"}, (*_KEY, *_JSON)),
    "GET /v1/{project}/revoked": Row("list_revoked", "read", {200: "Revoked"}, _READ),
    f"POST {_LEASE}": Row("ask_lease", "read", {200: "LeaseAnswer"}, (*_KEY, *_JSON, "too_many_leases")),
    f"PATCH {_LEASE}": Row("renew_lease", "lease", {200: "Renewed"}, (*_KEY, *_JSON, "lease_lost")),
    f"POST {_LEASE}/release": Row("release_lease", "lease", {200: "Released"}, (*_KEY, *_JSON, "lease_lost")),
    "POST /v1/{project}/lookup": Row("lookup", "read", {200: "Found"}, (*_READ, *_JSON)),
    "POST /v1/{project}/fetch": Row("fetch", "read", {200: TAR}, (*_READ, *_JSON, "store_unavailable")),
    "POST /v1/{project}/explain": Row("explain", "read", {200: "Nearest"}, (*_READ, *_JSON)),
    "POST /v1/{project}/reports": Row("report", "read", {204: ""}, (*_READ, *_JSON), ref("Report")),
    f"GET {_PLAN}": Row("read_plan", "read", {200: NDJSON}, _READ),
    f"PUT {_PLAN}": Row(
        "write_plan", "write", {200: "", 201: ""}, (*_CHANGE, *_BODY), {"type": "string"}, media_type=NDJSON
    ),
    "GET /v1/{project}/entries": Row("list_entries", "read", {200: "EntryPage"}, _READ),
    f"GET {_PINS}": Row("list_pins", "read", {200: "Pins"}, _READ),
    f"PUT {_PIN_ENTRY}": Row("pin_entry", "write", {200: "Created", 201: "Created"}, (*_CHANGE, "busy")),
    f"DELETE {_PIN_ENTRY}": Row("unpin_entry", "write", {204: ""}, _CHANGE),
    f"PUT {_PIN_LABEL}": Row("pin_label", "write", {200: "Created", 201: "Created"}, _CHANGE),
    f"DELETE {_PIN_LABEL}": Row("unpin_label", "write", {204: ""}, _CHANGE),
    f"PUT {_PIN_PLAN}": Row("pin_plan", "write", {200: "Created", 201: "Created"}, _CHANGE),
    f"DELETE {_PIN_PLAN}": Row("unpin_plan", "write", {204: ""}, _CHANGE),
    "GET /v1/{project}/quota": Row("read_quota", "read", {200: "Quota"}, _READ),
    f"GET {_TRUST}": Row("read_trust", "read", {200: "Trust"}, _READ),
    f"PUT {_TRUST}": Row("require_signatures", "admin", {204: ""}, (*_CHANGE, *_JSON)),
    f"PUT {_TRUST_KEY}": Row("trust_key", "admin", {204: ""}, (*_CHANGE, *_JSON)),
    f"DELETE {_TRUST_KEY}": Row("forget_key", "admin", {204: ""}, _CHANGE),
    f"POST {_TRUST_KEY}/revoke": Row("revoke_key", "admin", {204: ""}, _CHANGE),
    f"GET {_TRUST}/check": Row("check_trust", "admin", {200: "Unsound"}, _READ),
    "POST /v1/{project}/promotions": Row(
        "promote", "write, and read in the other project", {200: "Promoted"}, (*_PUBLISH, *_JSON, "signature_invalid")
    ),
    "GET /v1/-/whoami": Row("whoami", "", {200: "Caller"}),
    f"GET {_ADMIN}/policy": Row("read_policy", "admin", {200: "Policy"}, _READ),
    f"PUT {_QUOTA}": Row("set_quota", "admin", {204: ""}, (*_CHANGE, *_JSON)),
    f"PUT {_ADMIN}/server/quota": Row("set_server_quota", "admin", {204: ""}, (*_CHANGE, *_JSON)),
    f"PUT {_RULES}": Row("set_rules", "admin", {204: ""}, (*_CHANGE, *_JSON)),
    f"DELETE {_RULES}": Row("remove_rules", "admin", {204: ""}, _CHANGE),
    f"PUT {_ADMIN}/server/rules": Row("set_server_rules", "admin", {204: ""}, (*_CHANGE, *_JSON)),
    f"DELETE {_ADMIN}/server/rules": Row("remove_server_rules", "admin", {204: ""}, _CHANGE),
    f"POST {_ADMIN}/collect": Row("collect", "admin", {200: "Collected"}, (*_KEY, *_JSON)),
    f"POST {_ADMIN}/collection/pause": Row("pause_collection", "admin", {204: ""}, (*_CHANGE, *_JSON)),
    f"POST {_ADMIN}/collection/resume": Row("resume_collection", "admin", {204: ""}, _CHANGE),
    f"GET {_ADMIN}/readiness": Row("readiness", "admin", {200: "Readiness"}, _READ),
    f"GET {_ADMIN}/stats": Row("stats", "admin", {200: "Stats"}, _READ),
    f"POST {_ADMIN}/scrub": Row("start_scrub", "admin", {202: "Scrub"}, _READ),
    f"GET {_ADMIN}/scrub": Row("scrub_progress", "admin", {200: "Scrub"}, _READ),
    f"GET {_ADMIN}/tokens": Row("list_tokens", "admin", {200: "Tokens"}, _READ),
    f"POST {_ADMIN}/tokens": Row("create_token", "admin", {201: "NewToken"}, (*_CHANGE, *_JSON)),
    f"DELETE {_ADMIN}/tokens/{{public_id}}": Row("revoke_token", "admin", {204: ""}, _CHANGE),
    f"GET {_ADMIN}/audit": Row("read_audit", "admin", {200: "AuditPage"}, _READ),
    "GET /metrics": Row("metrics", "metrics", {200: METRICS}, _READ),
    "GET /": Row("overview", "", {200: HTML}),
    "GET /healthz": Row("healthz", "", {200: METRICS}),
    "GET /readyz": Row("readyz", "", {200: METRICS}),
    "GET /docs": Row("interface_page", "", {200: HTML}),
    "GET /openapi.json": Row("interface_document", "", {200: "Document"}),
}
"""By method and path. Artifacts and outputs are in `cache_server.interface.outputs`."""


def errors_of(path: str, row: Row) -> list[str]:
    """Return the names of all errors a call can end in."""
    if path in {"/healthz", "/readyz"}:
        return ["internal", "not_ready"]
    if path in OPEN:
        return ["wrong_host", "internal"]
    return sorted({*_GUARDED, *row.errors})


def problems(names: list[str]) -> dict[str, Any]:
    """Return the responses of errors, by status, as references to `problem_responses`."""
    by_status: dict[int, list[str]] = {}
    for name in names:
        by_status.setdefault(ERRORS[name].status, []).append(name)
    return {
        str(status): {"$ref": f"{_RESPONSES}{status}.{'.'.join(found)}"} for status, found in sorted(by_status.items())
    }


def problem_responses(references: Iterable[str]) -> dict[str, Any]:
    """Return the responses that are referred to, by the name of the component: status and errors."""
    found = {}
    for name in sorted({reference.removeprefix(_RESPONSES) for reference in references}):
        status, *errors = name.split(".")
        found[name] = _problem(int(status), errors)
    return found


def _problem(status: int, names: list[str]) -> Schema:
    said = {"properties": {"name": {"enum": names}, "status": {"const": status}}}
    answer: Schema = {
        "description": " Or: ".join(ERRORS[name].sentence for name in names),
        "headers": {"X-Request-Id": {"$ref": "#/components/headers/X-Request-Id"}},
        "content": {PROBLEM_JSON: {"schema": {"allOf": [ref("Problem"), said]}}},
    }
    for name, what in _ERROR_HEADERS.get(status, {}).items():
        answer["headers"][name] = {"description": what, "schema": {"type": "string"}}
    return answer


_ERROR_HEADERS = {
    401: {"WWW-Authenticate": "The bearer scheme."},
    405: {"Allow": "The methods of the address."},
    415: {
        "Accept": "The media type, where it was another.",
        "Accept-Encoding": "The content codings, where it was another.",
    },
    416: {"Content-Range": "`bytes */` and the length of the output."},
    429: {"Retry-After": "Seconds."},
    503: {"Retry-After": "Seconds, where another request holds the key."},
}


def good_answer(status: int, what: str) -> Schema:
    """Return the response of a call that went well, a row's ``good[status]``."""
    answer: Schema = {
        "description": _MEANINGS[status],
        "headers": {"X-Request-Id": {"$ref": "#/components/headers/X-Request-Id"}},
    }
    if "/" in what:
        text = {"type": "string"} if what != TAR else {}
        answer["content"] = {what: {"schema": text}}
    elif what:
        schema = {"type": "object"} if what == "Document" else ref(what)
        answer["content"] = {"application/json": {"schema": schema}}
    return answer


_MEANINGS = {
    200: "Done, or found.",
    201: "Made; it was not there before.",
    202: "Begun.",
    204: "Done; there is nothing to say.",
}
