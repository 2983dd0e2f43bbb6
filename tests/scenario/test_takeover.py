"""A process that compiles is killed: another takes over, one entry results, nothing is to be cleaned up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.jobs import job_environment
from tests.support.servers import running_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LEASE_SECONDS = 3

# A process that asks for one key. It says when its compiler runs; the compiler takes as long as it is told.
PROCESS = """
import json, os, sys, time
from client import Cache, Compiled, CompilerIdentity, Ir, KeyDocument, Kind
from client import neff

seconds, fill = float(sys.argv[1]), int(sys.argv[2])

def compile():
    print("compiling", flush=True)
    time.sleep(seconds)
    data = neff.pack({"a": bytes([fill]) * 5000}, name="n", build_version="v", uuid=os.urandom(16))
    return Compiled({"model.neff": data, "compile.log": b"log"}, seconds)

document = KeyDocument(Kind.GRAPH, Ir("stablehlo", "vhlo", "1.0.0", "0" * 64), CompilerIdentity("test", "1"), "t", 1)
cache = Cache.from_environment()
artifact = cache.get_or_compile(document, compile)
cache.close()
print(json.dumps({"source": artifact.source, "fill": neff.unpack(artifact.neff)["a"][0], "key": artifact.key}))
"""


@pytest.fixture(params=["server", "folder"])
def shared(request, tmp_path) -> Iterator[tuple[str, Path | None, Path]]:
    """Where the shared cache is: its address, the folder of the token, the folder of the store."""
    if request.param == "server":
        environment = {"NEFF_CACHE_LEASE_TTL_SECONDS": str(LEASE_SECONDS)}
        with running_server(tmp_path / "server", environment=environment) as server:
            yield server.url, server.config, server.data
    else:
        folder = tmp_path / "shared"
        folder.mkdir()
        yield str(folder), None, folder


def start(node: Path, shared: tuple[str, Path | None, Path], seconds: float, fill: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROCESS, str(seconds), str(fill)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=job_environment(node, shared[0], shared[1]),
    )


def result(process: subprocess.Popen[str]) -> dict[str, object]:
    output, errors = process.communicate(timeout=90)
    assert process.returncode == 0, errors
    return json.loads(output.splitlines()[-1])


@pytest.mark.parametrize("same_node", [True, False], ids=["same-node", "other-node"])
def test_a_killed_compile_costs_one_lease_time_and_leaves_one_entry(shared, tmp_path, same_node):
    holder = start(tmp_path / "node-a", shared, 60, fill=1)
    waiters = []
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline().strip() == "compiling"
        node = tmp_path / ("node-a" if same_node else "node-b")
        waiters = [start(node, shared, 0.2, fill=2) for _ in range(2)]
        time.sleep(1.5)  # the waiters are waiting now, or about to: both must end well
        assert all(waiter.poll() is None for waiter in waiters)
        os.kill(holder.pid, signal.SIGKILL)
        results = [result(waiter) for waiter in waiters]
    finally:
        for process in (holder, *waiters):
            process.kill()
            process.communicate(timeout=10)
    assert [found["fill"] for found in results] == [2, 2]
    assert sorted(str(found["source"]) for found in results) in (["compile", "disk"], ["compile", "remote"])
    key = results[0]["key"]
    entries = list(shared[2].glob(f"**/{key}/entry.json"))
    assert len(entries) == 1
    assert result(start(tmp_path / "node-c", shared, 0, fill=3))["source"] == "remote"
