"""Every table on a terminal of 80 columns, and piped, from real commands against a real server."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from client.transports.http import HttpTransport
from tests.cache_server.growth import made
from tests.fakes.waiting import HANG_SECONDS
from tests.support.servers import running_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.servers import Server

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = 80
LABEL = "llama-3-8b-instruct-tensor-parallel-32"
NAMES = ("first", "second")
_DIGITS = re.compile(r"[0-9a-f]{12,}")

TABLES = {
    "ls": ("entry", "created"),
    "show {key}": (),
    "status": (),
    "check plan.jsonl": ("state", "entry", "project", "label"),
    "doctor": ("state", "check", "finding"),
    "key list": ("id", "name", "state"),
    "token list": ("id", "label", "state", "grants", "created", "by", "expires", "last used"),
    "token whoami": ("scopes", "project", "kind"),
    "admin stats": ("project", "kind", "entries"),
    "admin audit": ("time", "who", "action", "on", "what"),
    "admin pins": ("pin", "entries", "by"),
    "admin quota": ("for", "quotas"),
    "admin collection run --dry-run": ("project", "entry", "reason"),
    "admin trust show": ("id", "name", "state"),
    "admin trust check": ("entry", "output", "why"),
    "admin check-config": ("setting", "value", "from"),
    "plan shapes lengths.csv": ("choice", "graphs", "padding"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("terminal")


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[Server]:
    with running_server(folder, environment={"NEFF_CACHE_COLLECT_GRACE_SECONDS": "0"}) as server:
        yield server


@pytest.fixture(scope="module")
def environment(folder: Path, running: Server) -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "FORCE_COLOR"}},
        "XDG_CONFIG_HOME": str(running.config),
        "NEURON_CACHE_URL": running.url,
        "NEURON_CACHE_NODE_DIR": str(folder / "node"),
        "NEURON_CACHE_TRUSTED_KEYS": str(folder / "trusted"),
        "COLUMNS": str(COLUMNS),
        "TERM": "xterm",
    }


@pytest.fixture(scope="module")
def keys(folder: Path, running: Server, environment: dict[str, str]) -> list[str]:
    """Whole keys and ids of all that the commands may show: entries, tokens, keys that are trusted."""
    entries = [made(name, 3_000_000, seconds=4000) for name in NAMES]
    with closing(HttpTransport(running.url, "default", environment)) as transport:
        for built in entries:
            producer = replace(built.entry.producer, label=LABEL)
            transport.publish(replace(built.entry, producer=producer), built.stored, None)
    listed = [built.entry.key for built in entries]
    line = {"schema": 1, "project": "default", "kind": "graph", "label": LABEL, "compile_seconds": 60}
    (folder / "plan.jsonl").write_text("".join(json.dumps({**line, "key": key}) + "\n" for key in (*listed, "0" * 64)))
    (folder / "lengths.csv").write_text("length,count\n" + "".join(f"{n},{n % 7 + 1}\n" for n in range(3, 300, 3)))
    run(("key", "generate", "signer", "--name", "platform-team"), folder, environment)
    public = (folder / "signer.pub").read_text().strip()
    for words in (
        ("pull", "plan.jsonl"),
        ("key", "trust", public),
        ("admin", "pin", f"graph/{listed[0]}"),
        ("admin", "pin", f"label:{LABEL}"),
        ("admin", "quota", "--project", "default", "--max-entries", "1"),
        ("admin", "unpin", f"graph/{listed[0]}"),
        ("admin", "unpin", f"label:{LABEL}"),
        ("admin", "pin", f"graph/{listed[1]}"),
        ("admin", "trust", "add", public),
        ("token", "create", LABEL, "--grant", "read,write,lease@team-*", "--expires", "30d"),
    ):
        run(words, folder, environment)
    tokens = json.loads(run(("token", "list", "--json"), folder, environment))
    trusted = json.loads(run(("key", "list", "--json"), folder, environment))
    return [*listed, *(token["id"] for token in tokens), *(key["key_id"] for key in trusted)]


def run(words: tuple[str, ...], folder: Path, environment: dict[str, str]) -> str:
    command = [sys.executable, "-m", "client.cli", *words]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=folder, check=False, timeout=HANG_SECONDS
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode in {0, 1}, done.stderr
    return done.stdout


def on_a_terminal(command: tuple[str, ...], folder: Path, environment: dict[str, str]) -> str:
    """Return what a person sees on a terminal of `COLUMNS` columns, without colours."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    with subprocess.Popen(
        [sys.executable, *command],
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        env=environment,
        cwd=folder,
    ) as process:
        os.close(theirs)
        seen = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # how Linux says that the other end is closed
                break
            if not piece:
                break
            seen += piece
        os.close(ours)
        assert process.wait(timeout=HANG_SECONDS) in {0, 1}
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode()).replace("\r\n", "\n")


def words_of(command: str, keys: list[str]) -> tuple[str, ...]:
    return tuple(command.format(key=keys[0]).split())


@pytest.mark.share(4)
@pytest.mark.parametrize("command", TABLES)
def test_a_table_fits_a_terminal_of_80_columns_and_breaks_no_key(
    command: str, folder: Path, environment: dict[str, str], keys: list[str]
) -> None:
    lines = on_a_terminal(("-m", "client.cli", *words_of(command, keys)), folder, environment).splitlines()
    assert lines
    assert [line for line in lines if len(line) > COLUMNS] == []
    if TABLES[command]:
        assert all(name.split()[0] in " ".join(lines) for name in TABLES[command])
    # what could be the beginning of a key is at least the twelve digits that commands take
    beginnings = {key[:length] for key in keys for length in range(5, len(key) + 1)}
    broken = [
        word for line in lines for word in re.findall(r"[0-9a-f]{5,}", line) if word in beginnings and len(word) < 12
    ]
    assert broken == [], "\n".join(lines)


@pytest.mark.share(4)
@pytest.mark.parametrize("command", [command for command, heads in TABLES.items() if heads])
def test_a_piped_table_has_heads_and_whole_keys(
    command: str, folder: Path, environment: dict[str, str], keys: list[str]
) -> None:
    head, *lines = run(words_of(command, keys), folder, environment).splitlines()
    wanted = TABLES[command]
    assert tuple(head.split("\t"))[: len(wanted)] == wanted
    assert lines
    shown = {
        digits for line in lines for digits in _DIGITS.findall(line) if any(key.startswith(digits) for key in keys)
    }
    assert shown <= set(keys)


def test_the_first_thing_a_newcomer_sees_fits_his_terminal(folder: Path, environment: dict[str, str]) -> None:
    hits = {"memory": 123, "disk": 123, "remote": 123}
    summary = {"lookups": 1234, "hits": hits, "compiles": 123, "compile_seconds": 123.4, "saved_seconds": 123.4}
    program = f"import demo; demo.show([demo.Job('second digits', 'node-b', {summary}, [0.309615], 123.4)])"
    there = {**environment, "PYTHONPATH": str(ROOT / "examples")}
    lines = on_a_terminal(("-c", program), folder, there).splitlines()
    assert len(lines) == 3
    assert [line for line in lines if len(line) > COLUMNS] == []
