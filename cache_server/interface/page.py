"""The page ``/docs``: the document as plain HTML, without scripts, and with nothing that is loaded from elsewhere."""

from __future__ import annotations

import json
from html import escape
from typing import TYPE_CHECKING, Any

from cache_server.errors import ERRORS
from cache_server.interface.document import operations
from cache_server.interface.guide import GUIDE

if TYPE_CHECKING:
    from collections.abc import Iterable

_STYLE = (
    "body{font:15px/1.45 system-ui;margin:2rem auto;max-width:64rem;padding:0 1rem}"
    "code,pre{font:13px ui-monospace,monospace}pre{overflow:auto;background:#f4f4f4;padding:.6rem}"
    "details{border-top:1px solid #ccc;padding:.4rem 0}summary{cursor:pointer}"
    "table{border-collapse:collapse;margin:.5rem 0}td{padding:.15rem 1rem .15rem 0;vertical-align:top}"
    "b.m{display:inline-block;width:4.5rem}h2{margin-top:2.5rem}"
)


def interface_page(document: dict[str, Any]) -> str:
    """Return the page for an OpenAPI document of `cache_server.interface.document`."""
    info = document["info"]
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>",
        f"<title>neff-cache: interface</title><style>{_STYLE}</style>",
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>{_paragraphs(info['description'])}",
        "<p>The same for programs: <a href=/openapi.json>/openapi.json</a> (OpenAPI 3.1).</p>",
    ]
    for tag in document["tags"]:
        parts.append(f"<h2 id='{escape(tag['name'])}'>{escape(tag['name'])}</h2><p>{escape(tag['description'])}</p>")
        parts += [
            _operation(path, method, operation, document)
            for path, method, operation in operations(document)
            if tag["name"] in operation["tags"]
        ]
    parts.append("<h2 id=errors>errors</h2>")
    parts += [
        f"<h3 id='error-{kind.name}'><code>{kind.name}</code> {kind.status}</h3>"
        f"<p>{escape(kind.sentence)}</p>{_paragraphs(GUIDE[kind.name])}"
        for kind in ERRORS.values()
    ]
    parts.append("<h2 id=schemas>schemas</h2>")
    parts += [
        f"<details id='schema-{escape(name)}'><summary><code>{escape(name)}</code></summary>{_json(schema)}</details>"
        for name, schema in document["components"]["schemas"].items()
    ]
    return "".join([*parts, "</html>"])


def _operation(path: str, method: str, operation: dict[str, Any], document: dict[str, Any]) -> str:
    rows = [
        (parameter["name"], parameter["in"], parameter.get("description", ""), json.dumps(parameter["schema"]))
        for parameter in operation.get("parameters", ())
    ]
    bodies = [
        f"<p>Body: <code>{escape(media)}</code></p>{_json(content['schema'])}"
        for media, content in operation.get("requestBody", {}).get("content", {}).items()
    ]
    shared = document["components"]["responses"]
    answers = [
        (status, found["description"], " ".join(found.get("content", ())))
        for status, answer in sorted(operation["responses"].items())
        for found in [shared[answer["$ref"].rpartition("/")[2]] if "$ref" in answer else answer]
    ]
    return (
        f"<details id='{escape(operation['operationId'])}'><summary><b class=m>{method.upper()}</b>"
        f"<code>{escape(path)}</code> {escape(operation['summary'])}</summary>"
        f"{_paragraphs(operation['description'])}{_table(rows)}{''.join(bodies)}{_table(answers)}</details>"
    )


def _paragraphs(text: str) -> str:
    return "".join(f"<p>{escape(part)}</p>" for part in text.split("\n\n"))


def _table(rows: Iterable[tuple[str, ...]]) -> str:
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}" for cell in row) for row in rows)
    return f"<table>{body}</table>" if body else ""


def _json(schema: Any) -> str:
    return f"<pre>{escape(json.dumps(schema, indent=1))}</pre>"
