"""The log of a real server: lines that programs can read, by which a job's message leads to what happened here."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from client.cache import Cache
from tests.cache_server.harness import build
from tests.client.programs import compiled, document
from tests.fakes.waiting import HANG_SECONDS
from tests.support.http_calls import Caller
from tests.support.servers import running_server

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "logging.md"
SECRETS = ("query-secret", "header-secret", "body-secret")


def _documented(title: str) -> set[str]:
    table = DOCUMENT.read_text().partition(title)[2].partition("|---|---|\n")[2].partition("\n\n")[0]
    return set(re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in table.splitlines())))


def _lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_lines_have_the_fields_that_are_documented_and_no_secret(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with running_server(tmp_path, environment={"NEFF_CACHE_ACCESS_LOG": "true"}) as server:
        caller = Caller(server.url, server.token)
        built = build()
        assert caller.publish(built).status == 201
        secret = {"Authorization": "Bearer header-secret", "X-Request-Id": "job-7.rank_3"}
        assert caller.call("GET", f"{built.artifact}?token=query-secret", headers=secret).status == 401
        token = "body-secret"
        assert caller.call("PATCH", built.lease, {"token": token}).status == 409
        token = server.token
    said = capfd.readouterr().err
    lines = [line for line in _lines(said) if line["event"] == "request"]
    common = _documented("Every line has") - {"exception"}
    expected = common | _documented("### Requests") - {"trace_id"}
    assert len(lines) == 5
    assert [line for line in lines if set(line) != expected] == []
    refused = next(line for line in lines if line["status"] == 401)
    assert (refused["request_id"], refused["level"], refused["error"]) == ("job-7.rank_3", "warning", "unauthorized")
    assert {line["level"] for line in lines if line["status"] < 400} == {"info"}
    assert not any(secret in said for secret in (*SECRETS, token))


@pytest.mark.soak
def test_a_level_silences_what_is_below_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    environment = {"NEFF_CACHE_ACCESS_LOG": "true", "NEFF_CACHE_LOG_LEVEL": "warning"}
    with running_server(tmp_path, environment=environment) as server:
        caller = Caller(server.url, server.token)
        assert caller.call("GET", "/healthz").status == 200
        assert caller.call("GET", "/v1/default/graph/artifacts/short").status == 422
    lines = _lines(capfd.readouterr().err)
    assert [line["status"] for line in lines if line["event"] == "request"] == [422]
    assert {line["level"] for line in lines} == {"warning"}


def test_a_jobs_warning_leads_to_the_line_of_the_server(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """The job's token is refused: its message names the id under which the server logged the refusal."""
    with running_server(tmp_path / "server") as server:
        environ = {
            "NEURON_CACHE_URL": server.url,
            "NEURON_CACHE_TOKEN": "wrong",
            "NEURON_CACHE_NODE_DIR": str(tmp_path / "node"),
        }
        cache = Cache.from_environment(environ)
        cache.get_or_compile(document(), compiled)
        cache.close()
    named = set(re.findall(r"\(request ([0-9a-f]{16})\)", caplog.text))
    assert named, caplog.text
    # the job may have said its sentence on the same stream
    of_the_server = "\n".join(line for line in capfd.readouterr().err.splitlines() if line.startswith("{"))
    refused = {line["request_id"] for line in _lines(of_the_server) if line.get("status") == 401}
    assert named <= refused


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_what_callers_send_moves_no_cursor_in_the_log(tmp_path: Path, log_format: str) -> None:
    script = (
        "import logging, structlog\n"
        "from cache_server import logging as ours\n"
        "from cache_server.settings import Settings\n"
        f"ours.configure(Settings(data_dir={str(tmp_path)!r}, log_format={log_format!r}))\n"
        "hostile = '\\x1b[2J a\\u202eb \\x9b \\x7f'\n"
        "log = structlog.get_logger('x')\n"
        "log.warning('request', path=hostile, caller=[hostile], detail={'label': hostile})\n"
        "log.warning(hostile)\n"
        "logging.getLogger('uvicorn').warning('from a library: %s', hostile)\n"
        "try:\n    raise RuntimeError(hostile)\n"
        "except RuntimeError as error:\n    log.error('failed', exc_info=error)\n"
    )
    environment = {**os.environ, "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"}
    ran = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=HANG_SECONDS,
        env=environment,
    )
    said = re.sub(r"\x1b\[[0-9;]*m", "", ran.stderr)  # the renderer's own colours
    assert said.count("[2J") >= 5
    assert all(character.isprintable() or character == "\n" for character in said), said
