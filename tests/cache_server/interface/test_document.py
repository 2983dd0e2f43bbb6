from __future__ import annotations

import html.parser
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fastapi.routing import APIRoute

from cache_server.app import ROUTERS, interface_document
from cache_server.errors import ERRORS, PROBLEM_JSON, Problem
from cache_server.interface.__main__ import documents
from cache_server.interface.answers import ANSWERS, OPEN, Row
from cache_server.interface.document import operations
from cache_server.interface.guide import GUIDE
from cache_server.routes.artifacts import ARTIFACT_ROUTE, BLOB_ROUTE
from tests.cache_server.harness import build, problem

if TYPE_CHECKING:
    from tests.cache_server.harness import InProcess

ROOT = Path(__file__).parents[3]
REQUEST = re.compile(r"`(?:GET|PUT|POST|PATCH|DELETE|HEAD) (/[^` ?]+)")


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_what_is_written_of_the_interface_is_what_this_server_does(path: Path) -> None:
    assert path.read_text() == documents()[path], "run: python -m cache_server.interface --write"


def test_every_route_is_described_and_nothing_else() -> None:
    routes = {
        f"{method} {re.sub(r':path}', '}', route.path)}"
        for router in ROUTERS
        for route in router.routes
        if isinstance(route, APIRoute)
        for method in route.methods
    }
    assert routes == set(ANSWERS)
    for path in (ARTIFACT_ROUTE, BLOB_ROUTE):
        assert {"get", "head"} <= set(interface_document()["paths"][path])


def test_a_caller_finds_all_that_a_call_needs_in_its_description() -> None:
    document = interface_document()
    names = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(set(names)) == len(names)
    tags = {tag["name"] for tag in document["tags"]}
    for path, method, operation in operations(document):
        where = f"{method} {path}"
        assert operation["summary"], where
        assert operation["description"], where
        assert set(operation["tags"]) <= tags, where
        parameters = operation.get("parameters", ())
        in_path = {parameter["name"] for parameter in parameters if parameter["in"] == "path"}
        assert in_path == set(re.findall(r"{(\w+)}", path)), where
        for parameter in parameters:
            assert parameter["in"] != "path" or {"pattern", "enum", "maxLength"} & set(parameter["schema"]), where
        guarded = path not in OPEN
        assert {"401", "421"} <= set(operation["responses"]) or not guarded, where
        for status, answer in operation["responses"].items():
            if int(status) >= 400:
                found = document["components"]["responses"][answer["$ref"].rpartition("/")[2]]
                assert list(found["content"]) == [PROBLEM_JSON], where


def test_every_reference_leads_somewhere() -> None:
    document = interface_document()
    for pointer in re.findall(r'"\$ref": "#/([^"]+)"', json.dumps(document)):
        found: Any = document
        for step in pointer.split("/"):
            found = found[step]
        assert found
    used = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document)))
    assert used == set(document["components"]["schemas"])


def test_each_error_says_what_happened_and_what_to_do() -> None:
    assert list(GUIDE) == list(ERRORS)
    for name, text in GUIDE.items():
        assert len(text) > 100, name
        assert text.endswith("."), name


def test_each_error_that_the_server_raises_by_name_stands_in_its_table() -> None:
    raised = {
        name
        for path in (ROOT / "cache_server").rglob("*.py")
        for name in re.findall(r"Problem\(\s*\"(\w+)\"", path.read_text())
    }
    assert raised <= set(ERRORS)
    assert Problem("busy").to_json("x")["type"] == "urn:neff-cache:problem:busy"


def test_the_documents_name_no_call_that_there_is_not() -> None:
    paths = [re.sub(r"{\w+}", "[^/]+", path) for path in interface_document()["paths"]]
    for document in (ROOT / "docs").rglob("*.md"):
        for named in REQUEST.findall(document.read_text()):
            assert any(re.fullmatch(path, re.sub(r"[{}…]", "", named)) for path in paths), (document.name, named)


class _Loads(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.identifiers: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in {"script", "link", "img", "iframe"} or given.get("src"):
            self.loaded.append(f"{tag} {given}")
        self.identifiers.append(given.get("id") or "")


def test_the_page_needs_nothing_from_anywhere_and_shows_every_call_and_error(server: InProcess) -> None:
    answer = server.call("GET", "/docs", token=None)
    assert answer.status_code == 200
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    page = _Loads()
    page.feed(answer.text)
    assert page.loaded == []
    assert "://" not in re.sub(r"<pre>.*?</pre>", "", answer.text, flags=re.DOTALL)
    shown = set(page.identifiers)
    assert {operation["operationId"] for _, _, operation in operations(interface_document())} <= shown
    assert {f"error-{name}" for name in ERRORS} <= shown


def test_the_document_that_is_served_is_the_one_that_is_kept(server: InProcess) -> None:
    assert server.call("GET", "/openapi.json", token=None).json() == interface_document()


def _members(schema: dict[str, Any], value: Any, where: str, components: dict[str, Any]) -> list[str]:
    """The members of ``value`` that a schema does not name."""
    if "$ref" in schema:
        return _members(components[schema["$ref"].rpartition("/")[2]], value, where, components)
    if "oneOf" in schema:
        found = [_members(each, value, where, components) for each in schema["oneOf"]]
        return min(found, key=len)
    parts = [schema, *schema.get("allOf", ())]
    if isinstance(value, list):
        return [each for item in value for each in _members(schema.get("items", {}), item, f"{where}[]", components)]
    if not isinstance(value, dict) or not (schema.get("properties") or schema.get("allOf")):
        return []
    known: dict[str, Any] = {}
    for part in parts:
        resolved = components[part["$ref"].rpartition("/")[2]] if "$ref" in part else part
        known |= resolved.get("properties", {})
    unknown = [f"{where}.{name}" for name in value if name not in known]
    return unknown + [
        each
        for name in value
        if name in known
        for each in _members(known[name], value[name], f"{where}.{name}", components)
    ]


def test_answers_hold_no_member_that_is_not_described(server: InProcess) -> None:
    built, other = build("a"), build("b")
    server.publish(built)
    place = {"project": "default", "kind": "graph", "key": built.entry.key, "name": "p", "label": "l"}
    keys = {"keys": [{"kind": "graph", "key": key} for key in (built.entry.key, other.entry.key)]}
    bodies: dict[str, dict[str, Any]] = {
        "publish_entry": {"json": built.entry.to_json()},
        "suspect_output": {"json": {"sha256": built.entry.outputs[0].sha256}},
        "ask_lease": {"json": {"holder": {"host": "h", "pid": 1}}},
        "lookup": {"json": keys},
        "explain": {"json": {"key_document": {**(built.entry.key_document or {}), "flags": ["-O9"]}}},
        "write_plan": {"content": json.dumps(keys["keys"][0])},
        "collect": {"json": {"dry_run": True}},
        "create_token": {"json": {"label": "t", "grants": [{"scopes": ["read"]}]}},
    }
    components = interface_document()["components"]["schemas"]
    asked, unknown = set(), []
    # first what makes something, then what shows it
    for call, row in sorted(ANSWERS.items(), key=lambda item: item[0].startswith("GET")):
        method, path = call.split(" ")
        if not _is_shown(row) or (method != "GET" and row.name not in bodies and "{label}" not in path):
            continue
        answer = server.call(method, path.format(**place), **bodies.get(row.name, {}))
        if answer.status_code in row.good:
            asked.add(row.name)
            unknown += _members({"$ref": row.good[answer.status_code]}, answer.json(), row.name, components)
    assert unknown == []
    assert {
        "read_entry",
        "ask_lease",
        "lookup",
        "explain",
        "list_entries",
        "list_pins",
        "stats",
        "list_tokens",
    } <= asked


def _is_shown(row: Row) -> bool:
    return any(what in interface_document()["components"]["schemas"] for what in row.good.values())


def test_an_unknown_address_is_a_problem_like_any_other(server: InProcess) -> None:
    assert problem(server.call("GET", "/v2/default")) == (404, "not_found")
