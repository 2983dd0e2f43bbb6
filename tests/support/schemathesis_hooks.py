"""Loaded by schemathesis: lets some of the requests that it makes up meet what is really stored.

No random key is the hash of a document, so that without this every look-up would be a miss and every publish refused.
`NEFF_TEST_REAL` holds, as JSON, values of path parameters, and by operation the bodies that fit them.
"""

from __future__ import annotations

import base64
import json
import os
import zlib
from typing import TYPE_CHECKING, Any

import schemathesis
from schemathesis import GenerationMode

if TYPE_CHECKING:
    from schemathesis import Case, HookContext

_REAL = json.loads(os.environ["NEFF_TEST_REAL"])
_LONGEST_WAIT = 0.2


@schemathesis.hook
def before_call(_context: HookContext, case: Case, _kwargs: dict[str, Any]) -> None:
    """Put real names into half of the requests that keep to the document, and never wait long for a lease."""
    if case.meta is None or case.meta.generation.mode is not GenerationMode.POSITIVE:
        return
    if isinstance(case.body, dict) and "wait_seconds" in case.body:
        case.body["wait_seconds"] = min(case.body["wait_seconds"], _LONGEST_WAIT)
    name = case.operation.definition.raw["operationId"]
    if name == "set_quota":
        # a quota of nothing on a project that others write to would be all that they meet
        case.path_parameters["project"] = "bounded"
    chosen = zlib.crc32(repr((name, case.path_parameters, case.query, case.headers)).encode()) % 2
    if not chosen or name in _REAL["left_alone"]:
        return
    values = _REAL["deleted"] if case.method == "DELETE" else _REAL["kept"]
    case.path_parameters.update({key: values[key] for key in case.path_parameters if key in values})
    body = _REAL["bodies"].get(name)
    if isinstance(body, str):
        case.body = base64.b64decode(body)
    elif body is not None:
        case.body = body


@schemathesis.serializer("application/x-ndjson")
def lines(_context: object, value: Any) -> bytes:
    """Send text as it is."""
    return str(value).encode("utf-8", "replace")
