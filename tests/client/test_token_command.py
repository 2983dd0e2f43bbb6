"""Tokens that a command prints: when it is run, and what happens when it does not do what it should."""

from __future__ import annotations

import base64
import json
import logging
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from client.errors import ConfigurationError, Denied, Unreachable
from client.names import Kind
from client.token_command import PAUSE, TokenCommand, shared_command
from client.token_source import TokenSource
from client.transports.http import HttpTransport
from client.transports.patience import Patience, patient
from tests.client.programs import build, document, entry_of
from tests.client.transports.raw_server import RawServer, Received, answer
from tests.fakes.waiting import HANG_SECONDS

if TYPE_CHECKING:
    import socket
    from pathlib import Path

DOCUMENT = document()
NEFF = build()
HIT = answer(200, NEFF, Neff_Entry=entry_of(DOCUMENT, {"model.neff": NEFF}).to_header() or "")
NO = answer(401, b'{"name": "unauthorized"}', Content_Type="application/problem+json")


class Program:
    """A program that prints what ``says`` holds and counts its runs."""

    def __init__(self, folder: Path, says: str, *, seconds: float = 0.0, status: int = 0) -> None:
        self.says = folder / "says"
        self.runs = folder / "runs"
        self.says.write_text(says)
        self.runs.write_text("")
        script = folder / "program.py"
        script.write_text(
            "import os, sys, time\n"
            f"os.write(os.open({str(self.runs)!r}, os.O_WRONLY | os.O_APPEND), b'x')\n"
            f"time.sleep({seconds})\n"
            f"sys.stderr.write('secret complaint')\n"
            f"sys.stdout.write(open({str(self.says)!r}).read())\n"
            f"sys.exit({status})\n"
        )
        self.line = f"{sys.executable} -S -E {script} --for 'the cache'"

    @property
    def count(self) -> int:
        return len(self.runs.read_text())

    def command(self, clock: Clock | None = None) -> TokenCommand:
        clock = clock or Clock()
        return TokenCommand(self.line, os.environ, monotonic=lambda: clock.now, now=lambda: clock.wall)


class Clock:
    now = 0.0
    wall = 1_000_000.0


def _jwt(exp: float) -> str:
    parts = (base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in ({}, {"exp": exp}))
    return b".".join([*parts, b"c2ln"]).decode()


def test_one_run_serves_all_threads_and_caches_of_a_process(tmp_path: Path) -> None:
    program = Program(tmp_path, "t0ken\n", seconds=0.2)
    sources = [
        TokenSource("http://cache", {**os.environ, "NEURON_CACHE_TOKEN_COMMAND": program.line}) for _ in range(8)
    ]
    assert program.count == 0  # a job that never asks a server runs nothing
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(TokenSource.current, sources)) == {"t0ken"}
    assert program.count == 1


def test_a_forked_child_uses_the_parents_token_and_is_not_stuck_on_its_lock(tmp_path: Path) -> None:
    program = Program(tmp_path, "t0ken")
    command = shared_command(program.line, os.environ)
    assert command.current() == "t0ken"
    held = threading.Event()
    let_go = threading.Event()

    def hold() -> None:
        with command.lock:
            held.set()
            let_go.wait(HANG_SECONDS)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(HANG_SECONDS)
    child = os.fork()
    if child == 0:
        same = command.current() == "t0ken" and command.instead_of("t0ken") is None
        os._exit(0 if same else 1)
    let_go.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert program.count == 1


def test_a_token_is_replaced_shortly_before_it_ends(tmp_path: Path) -> None:
    clock = Clock()
    program = Program(tmp_path, _jwt(clock.wall + 600))
    command = program.command(clock)
    first = command.current()
    clock.wall += 530
    clock.now += 530
    assert command.current() == first
    assert program.count == 1
    program.says.write_text(_jwt(clock.wall + 600))
    clock.wall += 20
    clock.now += 20
    assert command.current() == program.says.read_text()
    assert program.count == 2


def test_a_program_that_keeps_giving_an_old_token_is_not_run_at_every_request(tmp_path: Path) -> None:
    clock = Clock()
    program = Program(tmp_path, _jwt(clock.wall - 5))
    command = program.command(clock)
    for _ in range(20):
        assert command.current() == program.says.read_text()
        assert command.instead_of(program.says.read_text()) is None
    assert program.count == 1
    clock.now += PAUSE
    command.current()
    assert program.count == 2


@pytest.mark.parametrize(
    ("says", "status", "sentence"),
    [
        ("", 0, "holds no token"),
        ("two words", 0, "holds no token"),
        ("one\ntwo", 0, "holds no token"),
        ("t\x00k", 0, "holds no token"),
        ("x" * 70_000, 0, "more than"),
        ("secret", 3, "ended with status 3"),
    ],
)
def test_a_command_that_gives_no_token_is_named_without_what_it_said(
    tmp_path: Path, says: str, status: int, sentence: str
) -> None:
    command = Program(tmp_path, says, status=status).command()
    with pytest.raises(Unreachable, match=sentence) as caught:
        command.current()
    assert str(caught.value).startswith("the command of NEURON_CACHE_TOKEN_COMMAND gave no token")
    assert "secret" not in str(caught.value)


def test_a_command_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    line = f"{sys.executable} -S -E -c \"import os, time; os.fork(); open('{pid}', 'a').write('x'); time.sleep(600)\""
    with pytest.raises(Unreachable, match="did not end within"):
        TokenCommand(line, os.environ).current(3.0)


def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(Unreachable, match="'/no/such/program' cannot be started"):
        TokenCommand("/no/such/program --x", os.environ).current()


@pytest.mark.parametrize("line", ["'unfinished", "''"])
def test_a_line_that_is_no_command_is_refused_before_anything_is_asked(line: str) -> None:
    with pytest.raises((ConfigurationError, Unreachable), match="NEURON_CACHE_TOKEN_COMMAND"):
        TokenSource("http://cache", {"NEURON_CACHE_TOKEN_COMMAND": line}).current()


def test_nothing_in_the_line_is_read_by_a_shell(tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    line = f"{sys.executable} -c 'print(\"t0k\")' ; touch {witness} && $(touch {witness})"
    assert TokenCommand(line, os.environ).current() == "t0k"
    assert not witness.exists()


def test_variable_and_file_come_before_the_command(tmp_path: Path) -> None:
    program = Program(tmp_path, "from-command")
    file = tmp_path / "token"
    file.write_text("from-file")
    environ = {"NEURON_CACHE_TOKEN_COMMAND": program.line, "NEURON_CACHE_TOKEN_FILE": str(file)}
    assert TokenSource("http://cache", environ).current() == "from-file"
    assert TokenSource("http://cache", {**environ, "NEURON_CACHE_TOKEN": "given"}).current() == "given"
    assert program.count == 0


# Against a server


def _server(good: list[str]) -> RawServer:
    def script(request: Received, _: socket.socket) -> bytes:
        return HIT if request.headers.get("authorization") == f"Bearer {good[0]}" else NO

    return RawServer(script)


def test_a_token_that_ran_out_costs_one_request_and_not_the_cache(tmp_path: Path) -> None:
    program, good = Program(tmp_path, "first"), ["first"]
    with _server(good) as server:
        transport = HttpTransport(server.url, "default", {**os.environ, "NEURON_CACHE_TOKEN_COMMAND": program.line})
        command = shared_command(program.line, os.environ)
        assert transport.fetch(Kind.GRAPH, DOCUMENT.key) is not None
        program.says.write_text("second")
        good[0] = "second"
        command._ran = float("-inf")  # the pause is over
        assert transport.fetch(Kind.GRAPH, DOCUMENT.key) is not None
        assert [request.headers["authorization"] for request in server.requests] == [
            "Bearer first", "Bearer first", "Bearer second",
        ]  # fmt: skip
        good[0] = "neither"
        with pytest.raises(Denied):
            transport.fetch(Kind.GRAPH, DOCUMENT.key)
        transport.close()
    assert program.count == 2


def test_a_token_file_that_was_renewed_after_the_request_left_is_tried_before_giving_up(tmp_path: Path) -> None:
    file, good = tmp_path / "token", ["second"]
    file.write_text("first")

    def script(request: Received, _: socket.socket) -> bytes:
        file.write_text("second")
        return HIT if request.headers.get("authorization") == "Bearer second" else NO

    with RawServer(script) as server:
        transport = HttpTransport(server.url, "default", {"NEURON_CACHE_TOKEN_FILE": str(file)})
        assert transport.fetch(Kind.GRAPH, DOCUMENT.key) is not None
        transport.close()
        assert len(server.requests) == 2
    assert good


def test_a_job_waits_no_longer_for_a_token_than_for_a_server(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    program = Program(tmp_path, "t0ken", seconds=60)
    with RawServer(lambda request, sock: HIT) as server, caplog.at_level(logging.DEBUG):
        transport = HttpTransport(server.url, "default", {**os.environ, "NEURON_CACHE_TOKEN_COMMAND": program.line})
        with patient(Patience(quiet=1.0)), pytest.raises(Unreachable, match="did not end within 1 s"):
            transport.fetch(Kind.GRAPH, DOCUMENT.key)
        assert not server.requests
