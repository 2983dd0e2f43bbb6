"""The OpenAPI document: what FastAPI knows of the routes, completed from the tables of this package."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from fastapi.openapi.utils import get_openapi

from cache_server.interface.answers import ANSWERS, OPEN, errors_of, good_answer, problem_responses, problems
from cache_server.interface.outputs import output_paths
from cache_server.interface.schemas import DIGEST, KIND, OUTPUT, PROJECT, SCHEMAS, Schema, ref
from client import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fastapi import APIRouter

    from cache_server.interface.answers import Row

_DESCRIPTION = """\
A persistent, content-addressed compilation cache for AWS Neuron. An entry's key is the SHA-256 of the canonical JSON
document that names everything its outputs depend on; entries are immutable, and the first one published under a key
stays.

**Callers** send `Authorization: Bearer TOKEN`. Without any right on a project every call on it is answered 404.
**Errors** are `application/problem+json`; each name is explained in docs/errors.md and on `/docs`. A method that an
address does not take is answered 405 with `Allow`. **HEAD** is answered wherever GET is. **Unknown members** of JSON
bodies are ignored in the calls of jobs and refused in those of operators; clients ignore members they do not know.
"""

_TAGS = {
    "outputs": "Hits, and the bytes of entries.",
    "entries": "Entries: read, publish, delete, doubt.",
    "leases": "The right to compile a key; who waits for whom.",
    "projects": "A project as a whole: look-up of many keys, plans, pins, quota.",
    "trust": "Whose signatures a project asks for, and promotion.",
    "administration": "For administrators of the whole server.",
    "operations": "Health, metrics, and what the server says of itself.",
}

_PATTERNS: dict[str, Schema] = {
    "project": PROJECT,
    "kind": KIND,
    "key": DIGEST,
    "name": OUTPUT,
    "label": {"type": "string", "minLength": 1, "maxLength": 255},
    "key_id": {"type": "string", "minLength": 1, "maxLength": 64, "pattern": "^[^/]+$"},
    "public_id": {"type": "string", "pattern": "^[0-9a-f]{12}$"},
}
_QUERIES: dict[str, Schema] = {
    "project": PROJECT,
    "kind": KIND,
    "cursor": {"pattern": "^(eager|graph|cc|foreign)/[0-9a-f]{64}$"},
    "since": {"format": "date-time"},
}


def _same(*names: str) -> dict[str, Any]:
    return {"parameters": {name: f"$request.path.{name}" for name in names}}


_PLACE = _same("project", "kind", "key")
_LEASED = {**_PLACE, "requestBody": {"token": "$response.body#/token"}}
_PLANNED = _same("project", "name")
_LINKS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "publish_entry": [
        ("read_entry", _PLACE),
        ("get_artifact", _PLACE),
        ("pin_entry", _PLACE),
        ("delete_entry", _PLACE),
    ],
    "pin_entry": [("unpin_entry", _PLACE)],
    "ask_lease": [("renew_lease", _LEASED), ("release_lease", _LEASED)],
    "write_plan": [("read_plan", _PLANNED), ("pin_plan", _PLANNED)],
    "pin_plan": [("unpin_plan", _PLANNED)],
    "pin_label": [("unpin_label", _same("project", "label"))],
    "trust_key": [("revoke_key", _same("project", "key_id")), ("forget_key", _same("project", "key_id"))],
    "create_token": [("revoke_token", {"parameters": {"public_id": "$response.body#/id"}})],
}
_TYPED: dict[str, dict[str, Schema]] = {
    # members that FastAPI knows as text, and the routes check by the same functions as paths
    "KeyBody": {"kind": KIND, "key": DIGEST},
    "SuspectBody": {"sha256": DIGEST},
    "CollectBody": {"project": {"anyOf": [PROJECT, {"type": "null"}]}},
    "ReleaseBody": {"failure": {"anyOf": [ref("Failure"), {"type": "null"}]}},
    "ExplainBody": {
        "key_document": {"type": "object", "properties": {"kind": {"type": "string"}}, "required": ["kind"]},
    },
    "FetchBody": {"outputs": {"anyOf": [{"type": "array", "items": OUTPUT, "maxItems": 64}, {"type": "null"}]}},
}


def describe(routers: Iterable[APIRouter]) -> dict[str, Any]:
    """Return the document for the routes of ``routers`` and those for bytes.

    Raises `KeyError` for a route that has no row in `ANSWERS`.
    """
    routes = [route for router in routers for route in router.routes]
    document = get_openapi(
        title="neff-cache",
        version=__version__,
        description=_DESCRIPTION,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        tags=[{"name": name, "description": text} for name, text in _TAGS.items()],
        routes=routes,
    )
    document["paths"] = {**output_paths(), **document["paths"]}
    components = document["components"]
    components["schemas"] = {**_models(components["schemas"]), **copy.deepcopy(SCHEMAS)}
    components["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer", "description": "See docs/tokens.md."}
    }
    components["headers"] = {
        "X-Request-Id": {
            "description": "The caller's own, if it sent a good one, else a new one; also in the server's log.",
            "required": True,
            "schema": {"type": "string", "pattern": "^[0-9A-Za-z._-]{1,64}$"},
        }
    }
    document["security"] = [{"token": []}]
    for path, method, operation in operations(document):
        if operation["tags"] != ["outputs"]:
            _complete(path, operation, ANSWERS[f"{method.upper()} {path}"])
        if path in OPEN:
            operation["security"] = []
        _link(operation)
    components["responses"] = problem_responses(
        answer["$ref"]
        for _, _, operation in operations(document)
        for answer in operation["responses"].values()
        if "$ref" in answer
    )
    return document


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield path, method and description of every call."""
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield path, method, operation


def _models(found: dict[str, Schema]) -> dict[str, Schema]:
    """Return the schemas of checked bodies, without FastAPI's own for errors that this server words itself."""
    kept = {name: schema for name, schema in found.items() if not name.endswith("ValidationError")}
    for name, members in _TYPED.items():
        for member, schema in members.items():
            before = kept[name]["properties"][member]
            kept[name]["properties"][member] = {**{k: before[k] for k in ("default",) if k in before}, **schema}
    return kept


def _complete(path: str, operation: dict[str, Any], row: Row) -> None:
    operation["operationId"] = row.name
    if row.scope:
        operation["description"] += f"\n\nNeeds scope {_scopes(row.scope)}."
    for parameter in operation.get("parameters", ()):
        name = parameter["name"]
        if parameter["in"] == "path":
            parameter["schema"] = _PATTERNS[name]
        else:
            # a query leaves out what it does not say: there is no null in it
            schema = parameter["schema"]
            schema |= next((each for each in schema.pop("anyOf", ()) if each != {"type": "null"}), {})
            schema |= _QUERIES.get(name, {})
    if row.body is not None:
        is_json = row.media_type == "application/json"
        operation["requestBody"] = {"required": is_json, "content": {row.media_type: {"schema": row.body}}}
    good = {str(status): good_answer(status, what) for status, what in row.good.items()}
    operation["responses"] = {**good, **problems(errors_of(path, row))}


def _link(operation: dict[str, Any]) -> None:
    """Say which calls come after this one, and what they take from it."""
    for status, answer in operation["responses"].items():
        if status[0] == "2" and operation["operationId"] in _LINKS:
            answer["links"] = {name: {"operationId": name, **given} for name, given in _LINKS[operation["operationId"]]}


def _scopes(text: str) -> str:
    scope, comma, rest = text.partition(",")
    return f"`{scope}`{comma}{rest}"
