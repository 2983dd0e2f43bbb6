"""The calls that move bytes, described by hand: `cache_server.routes.artifacts` is not FastAPI's."""

from __future__ import annotations

from typing import Any

from cache_server.interface.answers import Row, errors_of, problems
from cache_server.interface.schemas import DIGEST, KIND, PROJECT, Schema, ref
from client.wire import ENTRY_HEADER

_BYTES = "application/octet-stream"
_TAG = '`"<sha256>"`, or `"<sha256>-zstd"` for the representation with `Content-Encoding: zstd`.'
_ARTIFACT = "/v1/{project}/{kind}/artifacts/{key}"
_BLOB = "/v1/{project}/{kind}/entries/{key}/blobs/{sha256}"
_READ = ("forbidden", "store_unavailable")
_READ_ERRORS = (*_READ, "precondition_failed")
_PUT_ERRORS = (
    *_READ_ERRORS,
    "short_body",
    "broken_body",
    "upload_timeout",
    "too_large",
    "unsupported_encoding",
    "wrong_digest",
    "quota_exceeded",
    "store_full",
)


def output_paths() -> dict[str, Any]:
    """Return the path items."""
    artifact = _path(project=PROJECT, kind=KIND, key=DIGEST)
    output = [*artifact, *_path(sha256=DIGEST)]
    found = {
        _ARTIFACT: {
            "get": _read(_ARTIFACT, "get_artifact", "A hit in one round trip: the bytes of `model.neff`"),
            "head": _head(_ARTIFACT, "head_artifact", "Whether there would be a hit"),
        },
        _BLOB: {
            "get": _read(_BLOB, "get_output", "The bytes of an output of a published entry"),
            "head": _head(_BLOB, "head_output", "Whether an output of a published entry can be had"),
            "put": _put(),
        },
    }
    for path, names in ((_ARTIFACT, artifact), (_BLOB, output)):
        for operation in found[path].values():
            operation["parameters"] = [*names, *operation["parameters"]]
    return found


def _path(**names: Schema) -> list[Schema]:
    return [{"name": name, "in": "path", "required": True, "schema": schema} for name, schema in names.items()]


def _asked(name: str, description: str) -> Schema:
    return {"name": name, "in": "header", "required": False, "description": description, "schema": {"type": "string"}}


_CONDITIONS = [
    _asked("If-Match", "Tags, compared strongly, or `*`: 412 if none is the stored one."),
    _asked("If-None-Match", "Tags, compared weakly, or `*`: 304 if one is the stored one."),
    _asked("Accept-Encoding", "zstd is sent only where it is named with a weight above 0, and only as stored."),
]
_RANGES = [
    _asked("Range", "One range of plain bytes. Several ranges, other units and malformed ones: the whole, 200."),
    _asked("If-Range", "A strong tag; the range holds only for that representation. A date never matches."),
]

_REPRESENTATION: dict[str, tuple[str, bool]] = {
    "ETag": (_TAG, True),
    "Cache-Control": ("`private, no-cache`: may be kept, and is asked for again.", True),
    "Vary": ("`accept-encoding`", True),
    ENTRY_HEADER: (
        "Artifacts only: base64url of the entry without its key document, if the whole head stays within 3.5 KiB.",
        False,
    ),
}
_CONTENT: dict[str, tuple[str, bool]] = {
    **_REPRESENTATION,
    "Accept-Ranges": ("`bytes`", True),
    "Content-Length": ("Bytes as they are sent.", True),
    "Content-Encoding": ("`zstd`, if the output is stored so and the caller takes it.", False),
}
_PART: dict[str, tuple[str, bool]] = {
    **_REPRESENTATION,
    "Accept-Ranges": ("`bytes`", True),
    "Content-Length": ("Bytes of the part.", True),
    "Content-Range": ("`bytes FIRST-LAST/LENGTH`", True),
}


def _answer(description: str, headers: dict[str, tuple[str, bool]], media_type: str = "") -> Schema:
    shown: Schema = {
        name: {"description": what, "required": required, "schema": {"type": "string"}}
        for name, (what, required) in headers.items()
    }
    shown["X-Request-Id"] = {"$ref": "#/components/headers/X-Request-Id"}
    answer: Schema = {"description": description, "headers": shown}
    if media_type:
        answer["content"] = {media_type: {}}
    return answer


def _operation(path: str, name: str, summary: str, scope: str, errors: tuple[str, ...]) -> Schema:
    return {
        "operationId": name,
        "tags": ["outputs"],
        "summary": summary,
        "description": f"Needs scope `{scope}`; for kind `foreign` see docs/tokens.md.",
        "responses": problems(errors_of(path, Row(name, scope, {}, errors))),
    }


def _read(path: str, name: str, summary: str) -> Schema:
    operation = _operation(path, name, summary, "read", (*_READ_ERRORS, "range_not_satisfiable"))
    operation["parameters"] = [*_CONDITIONS, *_RANGES]
    operation["responses"] |= {
        "200": _answer("The whole output.", _CONTENT, _BYTES),
        "206": _answer("The part that was asked for, of the plain bytes.", _PART, _BYTES),
        "304": _answer("The caller has it.", _REPRESENTATION),
        "307": _answer(
            "With `redirect_bytes` set and a bucket: an address in the bucket that lets anybody in for a while. It is "
            "followed without the token.",
            {
                "Location": ("A presigned URL.", True),
                "Cache-Control": ("`no-store`", True),
                ENTRY_HEADER: _REPRESENTATION[ENTRY_HEADER],
            },
        ),
    }
    return operation


def _head(path: str, name: str, summary: str) -> Schema:
    operation = _operation(path, name, summary, "read", _READ_ERRORS)
    operation["parameters"] = _CONDITIONS
    operation["responses"] |= {
        "200": _answer("The headers that GET would have.", _CONTENT),
        "304": _answer("The caller has it.", _REPRESENTATION),
    }
    return operation


def _put() -> Schema:
    operation = _operation(_BLOB, "put_output", "Store an output before its entry is published", "write", _PUT_ERRORS)
    operation["parameters"] = [
        {
            "name": "Content-Encoding",
            "in": "header",
            "required": False,
            "description": "zstd: the body is one frame, and stored so. The digest is of the plain bytes.",
            "schema": {"type": "string", "enum": ["identity", "zstd"]},
        },
        _asked("If-Match", "Tags, or `*`: 412 unless one is of what is stored."),
        _asked("If-None-Match", "Tags, or `*`: 412 if one is of what is stored."),
    ]
    operation["requestBody"] = {"required": True, "content": {_BYTES: {"schema": {}}}}
    stored = {"application/json": {"schema": ref("StoredOutput")}}
    for status, description in (("200", "It was stored before."), ("201", "Stored.")):
        operation["responses"][status] = {**_answer(description, {}), "content": stored}
    return operation
