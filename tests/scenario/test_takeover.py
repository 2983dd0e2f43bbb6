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

from tests.fakes.waiting import HANG_SECONDS, wait_until
from tests.support.launching import WORDS, Host, new_host
from tests.support.sharing import LEASE_SECONDS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.sharing import Shared

# A process that asks for one key. It says when its compiler runs; the compiler takes as long as it is told.
PROCESS = """
import json, os, sys, time
from client import Cache, Compiled, CompilerIdentity, Ir, KeyDocument, Kind
from client import neff
from client.settings import Settings
from client.transports import open_transport

seconds, fill, lease_seconds = float(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])

def compile():
    print("compiling", flush=True)
    time.sleep(seconds)
    data = neff.pack({"a": bytes([fill]) * 5000}, name="n", build_version="v", uuid=os.urandom(16))
    return Compiled({"model.neff": data, "compile.log": b"log"}, seconds)

document = KeyDocument(Kind.GRAPH, Ir("stablehlo", "vhlo", "1.0.0", "0" * 64), CompilerIdentity("test", "1"), "t", 1)
settings = Settings.from_environment()

def opened():
    return open_transport(settings.url, settings.project, os.environ, lease_seconds=lease_seconds)

cache = Cache(settings, open_transport=opened)
artifact = cache.get_or_compile(document, compile)
cache.close()
print(json.dumps({"source": artifact.source, "fill": neff.unpack(artifact.neff)["a"][0], "key": artifact.key}))
"""


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return new_host(tmp_path / "host")


def start(node: Path, shared: Shared, seconds: float, fill: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROCESS, str(seconds), str(fill), str(LEASE_SECONDS)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=shared.environment(node),
    )


def result(process: subprocess.Popen[str]) -> dict[str, object]:
    output, errors = process.communicate(timeout=90)
    assert process.returncode == 0, errors
    return json.loads(output.splitlines()[-1])


@pytest.mark.parametrize(
    "same_node", [pytest.param(True, id="same-node", marks=pytest.mark.soak), pytest.param(False, id="other-node")]
)
@pytest.mark.share(1)
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
            process.communicate(timeout=HANG_SECONDS)
    assert [found["fill"] for found in results] == [2, 2]
    assert sorted(str(found["source"]) for found in results) in (["compile", "disk"], ["compile", "remote"])
    key = results[0]["key"]
    assert len([name for name in shared.files.names() if name.endswith(f"{key}/entry.json")]) == 1
    assert result(start(tmp_path / "node-c", shared, 0, fill=3))["source"] == "remote"


@pytest.mark.share(1)
def test_a_stopped_holder_keeps_neither_its_cluster_nor_its_own_node_waiting(shared, tmp_path):
    holder = start(tmp_path / "node-a", shared, 60, fill=1)
    others = []
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "compiling\n"
        holder.send_signal(signal.SIGSTOP)
        others = [start(tmp_path / node, shared, 0.5, fill=2) for node in ("node-a", "node-a", "node-b")]
        results = [result(process) for process in others]
    finally:
        for process in [holder, *others]:
            process.kill()
            process.communicate()
    assert {found["fill"] for found in results} == {2}
    assert [found["source"] for found in results].count("compile") == 1


@pytest.mark.parametrize("ends", ["well", "badly"])
@pytest.mark.share(1)
def test_without_a_shared_cache_one_of_those_who_wait_compiles_in_place_of_a_stopped_holder(host, ends):
    host.real.set_mode("slow")
    with host.start(("compile", "in.mlir", *WORDS, "--output", "out.neff")) as holder:
        wait_until(lambda: host.compiles == 1, "the compiler runs")
        stopped = [holder.pid, int(host.real.calls[-1]["pid"])]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        host.real.set_mode("ok" if ends == "well" else "diagnosis")
        try:
            waiters = [host.start(("compile", "in.mlir", *WORDS, "--output", f"{n}.neff")) for n in range(3)]
            for waiter in waiters:
                waiter.communicate(timeout=90)
            assert [waiter.returncode for waiter in waiters] == [0 if ends == "well" else 70] * 3
            assert host.compiles == 2
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGKILL)
