"""JSON Schemas (2020-12, as OpenAPI 3.1 takes them) of what the server answers, by the name of the component.

Bodies that FastAPI checks have their schemas from its models; these are of documents that this distribution writes and
reads by itself (`client.wire`), and that no model stands for.
"""

from __future__ import annotations

from typing import Any

from cache_server.access import Scope
from client.names import Kind
from client.wire import ENTRY_SCHEMA, MAX_INTEGER, MAX_PROMOTIONS

Schema = dict[str, Any]

PROJECT: Schema = {"type": "string", "pattern": "^[a-z0-9][a-z0-9-]{0,62}$", "not": {"enum": ["meta", "quarantine"]}}
KIND: Schema = {"type": "string", "enum": [str(kind) for kind in Kind]}
DIGEST: Schema = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
OUTPUT: Schema = {"type": "string", "pattern": "^[a-z0-9][a-z0-9._-]{0,63}$"}

_TEXT: Schema = {"type": "string"}
_TRUTH: Schema = {"type": "boolean"}
_TIME: Schema = {"type": "string", "format": "date-time"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_SIZE: Schema = {"type": "integer", "minimum": 0, "maximum": MAX_INTEGER, "description": "Bytes."}
_SECONDS: Schema = {"type": "number", "minimum": 0, "maximum": MAX_INTEGER}
_FIGURE: Schema = {"type": "number"}
_MAP: Schema = {"type": "object"}


def ref(name: str) -> Schema:
    """Return a reference to a component."""
    return {"$ref": f"#/components/schemas/{name}"}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _list(schema: Schema, **bounds: int) -> Schema:
    return {"type": "array", "items": schema, **bounds}


def _object(description: str, optional: dict[str, Schema] | None = None, /, **members: Schema) -> Schema:
    """All of ``members`` are always there; clients ignore members that they do not know."""
    return {
        "type": "object",
        "description": description,
        "properties": {**members, **(optional or {})},
        "required": list(members),
    }


_NAMED: dict[str, Schema] = {"kind": KIND, "key": DIGEST}
_GRANT: Schema = _object(
    "Scopes over projects and kinds.", scopes=_list({"enum": list(Scope)}), project=_TEXT, kind=_TEXT
)
_LIMIT: dict[str, Schema] = {"max_bytes": _or_null(_COUNT), "max_entries": _or_null(_COUNT)}
_AMOUNT: Schema = _object("How much there is.", stored_bytes=_COUNT, entries=_COUNT)
_LEASE: dict[str, Schema] = {"generation": _COUNT, "expires_in": _SECONDS}
_FAILURE: dict[str, Schema] = {"class": {"enum": ["diagnosis", "resource", "transient"]}, "text": _TEXT, "log": _TEXT}


def _state(name: str) -> Schema:
    return {"const": name}


SCHEMAS: dict[str, Schema] = {
    "Problem": _object(
        "An error (RFC 9457); see docs/errors.md.",
        {"detail": _TEXT},
        type={"type": "string", "pattern": "^urn:neff-cache:problem:[a-z_]+$"},
        title=_TEXT,
        status={"type": "integer", "minimum": 400, "maximum": 599},
        name={"type": "string", "pattern": "^[a-z_]+$"},
        request_id={"type": "string", "pattern": "^[0-9A-Za-z._-]{1,64}$"},
    ),
    "Output": _object(
        "A file of an entry; digest and size are of the plain bytes.",
        name=OUTPUT,
        sha256=DIGEST,
        size=_SIZE,
        encoding={"enum": ["identity", "zstd"]},
        stored_size=_SIZE,
    ),
    "Entry": _object(
        "Key -> outputs, with the key document and provenance. Immutable once published.",
        {
            "key_document": _or_null({"type": "object", "description": "Its canonical form hashes to the key."}),
            "peak_memory_bytes": _or_null(_SIZE),
            "signature": _or_null({"type": "object"}),
            "promotions": _or_null(_list({"type": "object"}, maxItems=MAX_PROMOTIONS)),
        },
        schema={"const": ENTRY_SCHEMA},
        project=PROJECT,
        kind=KIND,
        key=DIGEST,
        outputs=_list(ref("Output"), minItems=1),
        created={"type": "string", "description": "RFC 3339, by the publisher's clock."},
        compile_seconds=_SECONDS,
        producer=_object("Who built it.", version=_TEXT, host=_TEXT, label=_TEXT),
    ),
    "Holder": _object("Who compiles.", host=_TEXT, pid=_COUNT, rank=_or_null(_COUNT), label=_TEXT),
    "LeaseAnswer": {
        "description": "What becomes of a request for the right to compile, by `state`.",
        "oneOf": [
            _object("The entry is there.", state=_state("ready"), entry=ref("Entry")),
            _object(
                "The caller compiles; it renews the lease every third of its time to live.",
                state=_state("granted"),
                token=_TEXT,
                generation=_COUNT,
                ttl_seconds=_SECONDS,
            ),
            _object("Another one compiles.", state=_state("wait"), holder=ref("Holder"), since=_TIME, **_LEASE),
            _object(
                "The compile failed, and the failure is not forgotten yet.",
                {"host": _TEXT},
                state=_state("failed"),
                expires_in=_SECONDS,
                replayed=_TRUTH,
                **_FAILURE,
            ),
            _object("The caller may wait, and is never granted.", state=_state("denied")),
        ],
    },
    "Renewed": _object("The lease lives on.", generation=_COUNT, ttl_seconds=_SECONDS),
    "Released": _object("The lease ended.", state=_state("released")),
    "Verdict": _object("What became of the entry.", state={"enum": ["sound", "quarantined", "absent"]}),
    "StoredOutput": _object("As it is stored.", sha256=DIGEST, size=_SIZE, encoding=_TEXT, stored_size=_SIZE),
    "Revoked": _object("What clients drop.", revoked=_list(_object("One entry.", sha256=DIGEST, time=_TIME, **_NAMED))),
    "Found": _object(
        "Entries that are there, keys that are not, and those of them that are being compiled.",
        found=_list(ref("Entry")),
        missing=_list(_object("A key.", **_NAMED)),
        leased=_list(_object("A key.", **_NAMED)),
    ),
    "Nearest": _object(
        "Stored entries whose key documents are nearest.",
        nearest=_list(
            _object(
                "One entry and all that differs.",
                host=_TEXT,
                label=_TEXT,
                created=_TEXT,
                differences=_list(_object("A part of the key document.", path=_TEXT, stored={}, asked={})),
                **_NAMED,
            )
        ),
    ),
    "EntryPage": _object(
        "Entries in the order of kind and key; `next` is the cursor of the page after.",
        next=_or_null(_TEXT),
        entries=_list(
            _object(
                "An entry and its use.",
                label=_TEXT,
                compiler=_TEXT,
                compiler_version=_TEXT,
                stored_bytes=_COUNT,
                compile_seconds=_SECONDS,
                published=_TIME,
                last_used=_or_null(_TIME),
                hits=_COUNT,
                score=_FIGURE,
                pinned=_TRUTH,
                **_NAMED,
            )
        ),
    ),
    "Pins": _object(
        "What is never collected.",
        pins=_list(
            _object(
                "A pin on an entry, a label or a plan.",
                {"kind": KIND, "key": DIGEST, "label": _TEXT, "plan": OUTPUT, "entries": _COUNT},
                what={"enum": ["entry", "label", "plan"]},
                by=_TEXT,
            )
        ),
    ),
    "Created": _object("Whether it is new.", created=_TRUTH),
    "Quota": _object(
        "Bounds, null where there is none, what is held, and where there is room for another entry.",
        held=_AMOUNT,
        room=_object("Whether a small entry would be taken.", quota={"type": "boolean"}, store={"type": "boolean"}),
        **_LIMIT,
    ),
    "Trust": _object(
        "Whose signatures the project asks for.",
        signatures={"enum": ["required", "optional"]},
        keys=_list({"type": "string", "description": "A line of a list of trusted keys."}),
    ),
    "Unsound": _object(
        "Entries that could not be published today.",
        entries=_list(_object("One entry.", name=_TEXT, detail=_TEXT, **_NAMED)),
    ),
    "Promoted": _object(
        "What became of each record, in their order.",
        results=_list(
            _object(
                "One record.",
                {"name": _TEXT, "detail": _TEXT},
                state={"enum": ["promoted", "present", "refused"]},
                **_NAMED,
            )
        ),
    ),
    "Policy": _object(
        "By project; the row of the whole server is called `server`.",
        quotas={"type": "object", "additionalProperties": _object("A quota.", **_LIMIT)},
        rules=_MAP,
        collection_paused=_or_null(_MAP),
    ),
    "Collected": _object(
        "What went, or would go, and why; at most the first thousand entries are listed.",
        state={"enum": ["done", "dry_run", "paused", "busy", "futile", "interrupted"]},
        entries=_COUNT,
        bytes=_COUNT,
        spared=_COUNT,
        by_reason={"type": "object", "additionalProperties": _AMOUNT},
        listed=_list(
            _object(
                "An entry.",
                project=PROJECT,
                reason=_TEXT,
                score=_FIGURE,
                stored_bytes=_COUNT,
                compile_seconds=_SECONDS,
                label=_TEXT,
                compiler=_TEXT,
                compiler_version=_TEXT,
                **_NAMED,
            )
        ),
    ),
    "Stats": _object(
        "Figures of every project.",
        projects={"type": "object", "additionalProperties": _object("A project.", kinds=_MAP)},
        server_quota=_or_null(_object("A quota.", **_LIMIT)),
        leases_held=_COUNT,
        collection=_object("The last run.", last_ended=_or_null(_TIME), paused=_or_null(_MAP)),
    ),
    "Readiness": _object("What `/readyz` goes by.", ready=_TRUTH, role=_TEXT, parts=_MAP),
    "Scrub": {
        "description": "How far the scrub is.",
        "oneOf": [
            _object("There was none yet.", state=_state("never")),
            _object(
                "A run.",
                state={"enum": ["running", "resting", "ended"]},
                started=_TIME,
                ended=_or_null(_TIME),
                entries=_COUNT,
                bytes_read=_COUNT,
                quarantined=_COUNT,
                unreadable=_COUNT,
                suspected=_COUNT,
                reason=_or_null(_TEXT),
            ),
        ],
    },
    "Token": _object(
        "What is known of a token; never the token.",
        id={"type": "string", "pattern": "^[0-9a-f]{12}$"},
        label=_TEXT,
        state={"enum": ["valid", "expired", "revoked"]},
        grants=_list(_GRANT),
        rate=_or_null(_FIGURE),
        created=_TIME,
        created_by=_TEXT,
        expires=_or_null(_TIME),
        revoked=_or_null(_TIME),
        last_used=_or_null(_TIME),
    ),
    "NewToken": {
        "allOf": [ref("Token"), _object("Shown once.", token={"type": "string", "pattern": "^nc_[A-Za-z0-9_-]{43}$"})]
    },
    "Tokens": _object("All tokens.", tokens=_list(ref("Token"))),
    "AuditPage": _object(
        "Changes, the newest first; `next` is the `before` of the page after.",
        next=_or_null(_COUNT),
        rows=_list(
            _object(
                "A change.",
                id=_COUNT,
                time=_TIME,
                actor=_TEXT,
                action=_TEXT,
                project=_or_null(_TEXT),
                kind=_or_null(_TEXT),
                key=_or_null(_TEXT),
                detail=_MAP,
                request_id=_or_null(_TEXT),
            )
        ),
    ),
    "Caller": _object("The caller.", name=_TEXT, token=_or_null(_TEXT), grants=_list(_GRANT)),
    "Report": {
        "type": "object",
        "description": "A client's summary of a run, as NEURON_CACHE_SUMMARY has it.",
        "properties": {
            "by_kind": {"type": "object", "properties": {str(kind): ref("Counts") for kind in Kind}},
            "keys": _list(DIGEST),
        },
        "required": ["by_kind"],
    },
    "Counts": {
        "type": "object",
        "description": "Counts of one kind; those left out are 0.",
        "properties": {
            **dict.fromkeys(("lookups", "misses", "compiles", "waits", "errors", "bytes_down", "bytes_up"), _SECONDS),
            **dict.fromkeys(("compile_seconds", "saved_seconds"), _SECONDS),
            "hits": {"type": "object", "properties": dict.fromkeys(("memory", "disk", "remote"), _SECONDS)},
        },
    },
    "Failure": {
        "type": "object",
        "description": "A compile that failed.",
        "properties": {"class": _FAILURE["class"], "text": _TEXT, "log": _TEXT},
        "required": ["class", "text"],
    },
}
"""Components, by name."""
