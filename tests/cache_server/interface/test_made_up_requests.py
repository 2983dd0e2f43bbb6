"""schemathesis makes requests up from the OpenAPI document, good and bad ones, and judges what a real server answers.

All its checks are on: statuses, media types, schemas and headers are those of the document; what breaks the document is
refused; no other method is taken, and none without a token. What it is told not to expect stands in schemathesis.toml.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from client.names import MAIN_OUTPUT
from tests.cache_server.harness import build
from tests.support.http_calls import Caller
from tests.support.postgres import postgres
from tests.support.servers import running_server

if TYPE_CHECKING:
    from tests.cache_server.harness import Built
    from tests.support.servers import Server

pytestmark = pytest.mark.once

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[2]


def _place(built: Built) -> dict[str, str]:
    entry = built.entry
    names = {"project": entry.project, "kind": str(entry.kind), "key": entry.key, "name": "plan"}
    return {**names, "sha256": entry.outputs[0].sha256}


def _real(server: Server) -> dict[str, Any]:
    """Publish two entries and return what `tests.support.schemathesis_hooks` puts into requests."""
    caller = Caller(server.url, server.token)
    kept, deleted = build("kept"), build("deleted")
    assert [caller.publish(built).status for built in (kept, deleted)] == [201, 201]
    keys = {"keys": [{"kind": "graph", "key": kept.entry.key}]}
    return {
        "kept": _place(kept),
        "deleted": _place(deleted),
        # what would keep the others from the entries that are there
        "left_alone": ["set_quota", "set_rules", "require_signatures", "trust_key"],
        "bodies": {
            "publish_entry": kept.entry.to_json(),
            "put_output": base64.b64encode(kept.stored[MAIN_OUTPUT]).decode(),
            "suspect_output": {"sha256": kept.entry.outputs[0].sha256},
            "lookup": keys,
            "fetch": keys,
            "explain": {"key_document": {**(kept.entry.key_document or {}), "flags": ["-O9"]}},
            "write_plan": base64.b64encode(json.dumps(keys["keys"][0]).encode()).decode(),
        },
    }


def _judge(server: Server, *options: str, seconds: float) -> str:
    """Return what schemathesis says at the end; fails with all of it if it found anything."""
    done = subprocess.run(
        [
            Path(sys.executable).with_name("schemathesis"),
            "--no-color",
            f"--config-file={_HERE / 'schemathesis.toml'}",
            "run",
            f"{server.url}/openapi.json",
            f"--header=Authorization: Bearer {server.token}",
            "--continue-on-failure",
            *options,
        ],
        cwd=server.data,
        env={
            **os.environ,
            "NEFF_TEST_REAL": json.dumps(_real(server)),
            "SCHEMATHESIS_HOOKS": "tests.support.schemathesis_hooks",
            "PYTHONPATH": str(_ROOT),
        },
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout.rpartition("SUMMARY")[2]
    # a run in which nothing was generated passes too
    assert "Test cases:" in said, done.stdout
    sys.stdout.write(said)
    return said


@pytest.mark.timeout(900)  # for hangs: a loaded machine takes ten times as long
def test_every_call_keeps_its_word_to_callers_who_keep_or_break_theirs(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        _judge(server, "--phases=fuzzing,stateful", "--max-examples=2", "--seed=4", seconds=850)
        assert server.process.poll() is None


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_every_call_keeps_its_word_to_many_callers(tmp_path: Path, database: str) -> None:
    options = ("--max-examples=40", "--seed=5")
    if database == "sqlite":
        with running_server(tmp_path) as server:
            _judge(server, *options, seconds=2900)
        return
    with postgres().new_database() as url, running_server(tmp_path, "--database", url) as server:
        _judge(server, *options, seconds=2900)
