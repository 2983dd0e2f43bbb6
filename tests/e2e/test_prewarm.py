"""Prewarm, then serve: what a machine without weights published is all that a fresh serving process needs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.fakes.programs import install_neuronx_cc
from tests.support.jobs import job_environment
from tests.support.servers import running_server

ROOT = Path(__file__).resolve().parents[2]
SERVING = ROOT / "examples" / "serve_gpt.py"
ENTRY = f"{SERVING}:prewarm"
LIMIT_SECONDS = 600

pytestmark = pytest.mark.timeout(1800)


def command(environment: dict[str, str], *words: str, status: int = 0) -> str:
    """Run ``neff-cache`` in a process of its own and return what it printed."""
    return run([sys.executable, "-m", "client.cli", *words], environment, status)


def run(call: list[str], environment: dict[str, str], status: int = 0) -> str:
    done = subprocess.run(
        call, env=environment, capture_output=True, text=True, timeout=LIMIT_SECONDS, cwd=ROOT, check=False
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def serve(environment: dict[str, str], buckets: str) -> dict:
    """Serve as a deployment does that must not compile."""
    call = [sys.executable, str(SERVING), "--buckets", buckets, "--requests", "20", "--json"]
    return json.loads(run(call, {**environment, "NEURON_CACHE_ON_MISS": "fail"}).splitlines()[-1])


def check_prewarm_and_serve(folder: Path, lengths: list[int], servers: int) -> None:
    buckets = ",".join(map(str, lengths))
    plan = str(folder / "gpt.plan")
    with running_server(folder / "server") as server:
        build = job_environment(folder / "build", server.url, server.config)
        command(build, "prewarm", ENTRY, "--meta", "--shapes", buckets, "--keys-only", "--plan", plan)
        assert command(build, "check", plan, status=1).count("missing") == len(lengths)
        report = json.loads(command(build, "prewarm", ENTRY, "--meta", "--shapes", buckets, "--plan", plan, "--json"))
        assert [program["where"] for program in report["programs"]] == ["compiled"] * len(lengths)
        assert report["complete"]
        assert command(build, "check", plan) == f"all {len(lengths)} entries are there\n"
        if servers > 1:
            again = command(build, "prewarm", ENTRY, "--meta", "--shapes", buckets)
            assert f"0 compiled, {len(lengths)} were there already" in again
        nodes = [job_environment(folder / f"node-{number}", server.url, server.config) for number in range(servers)]
        with ThreadPoolExecutor(2) as pool:
            served = list(pool.map(lambda node: serve(node, buckets), nodes))
    planned = sorted(json.loads(line)["key"] for line in Path(plan).read_text().splitlines())
    for each in served:
        assert each["compiles"] == 0
        assert each["keys"] == planned
        assert each["answers"] == served[0]["answers"]
    print(f"{len(lengths)} buckets, {servers} serving processes: {len(planned)} programs, 0 compiles")  # noqa: T201 - quoted


@pytest.mark.soak  # tests/neuron_backend/prewarm holds the share of `make test`
def test_two_buckets_are_prewarmed_and_served_without_a_compile(tmp_path):
    check_prewarm_and_serve(tmp_path, [16, 32], servers=1)


@pytest.mark.soak
def test_six_buckets_are_prewarmed_once_and_served_by_eight_processes_without_a_compile(tmp_path):
    check_prewarm_and_serve(tmp_path, [8, 16, 24, 32, 48, 64], servers=8)


@pytest.mark.soak
def test_for_a_chip_that_is_not_here_the_keys_are_those_of_a_host_that_has_it(tmp_path):
    program = install_neuronx_cc(tmp_path / "bin").program
    build = job_environment(tmp_path / "build", str(tmp_path / "shared"), NEURON_CACHE_COMPILER=str(program))
    words = ("prewarm", ENTRY, "--meta", "--shapes", "16")
    there, here, other = (str(tmp_path / f"{name}.plan") for name in ("there", "here", "other"))
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(command, build, *words, "--target", "trn2", "--plan", there)
        second = pool.submit(command, build, *words, "--target", "trn1", "--keys-only", "--plan", other)
        assert "1 compiled" in first.result()
        second.result()
    job = {**build, "NEURON_PLATFORM_TARGET_OVERRIDE": "trn2", "NEURON_BACKEND_COMPILER": "neuronx-cc"}
    # a library that is opened is an error: nothing at prewarm time opens a device
    job["NEURON_BACKEND_LIBNRT"] = str(tmp_path / "no-such-library.so")
    command(job, *words, "--keys-only", "--plan", here)
    assert Path(here).read_text().count("\n") == 1
    keys = [json.loads(Path(path).read_text())["key"] for path in (there, here, other)]
    assert keys[0] == keys[1] != keys[2]
    assert command(build, "check", there) == "all 1 entries are there\n"
    command(build, "check", other, status=1)


@pytest.mark.soak
def test_two_prewarms_at_once_while_entries_vanish_end_well_and_leave_everything(tmp_path):
    shared = tmp_path / "shared"
    plan = str(tmp_path / "gpt.plan")
    words = ("prewarm", ENTRY, "--meta", "--shapes", "8,16,24,32", "--plan", plan, "--jobs", "8", "--json")
    nodes = [job_environment(tmp_path / f"node-{number}", str(shared)) for number in range(2)]
    gone: list[str] = []
    over = threading.Event()

    def collect() -> None:
        """Remove the first two entries that appear, as a collection does in a cache that is full."""
        while len(gone) < 2 and not over.is_set():
            for entry in shared.glob("default/graph/??/*/entry.json"):
                if entry.parent.name not in gone:
                    gone.append(entry.parent.name)
                    shutil.rmtree(entry.parent, ignore_errors=True)
                    break
            time.sleep(0.02)

    collector = threading.Thread(target=collect)
    collector.start()
    try:
        with ThreadPoolExecutor(2) as pool:
            reports = [json.loads(each) for each in pool.map(lambda node: command(node, *words), nodes)]
    finally:
        over.set()
        collector.join()
    assert len(gone) == 2
    assert all(report["complete"] and len(report["programs"]) == 4 for report in reports)
    assert command(nodes[0], "check", plan) == "all 4 entries are there\n"
    assert {program["where"] for report in reports for program in report["programs"]} <= {"compiled", "remote"}
