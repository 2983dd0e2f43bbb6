"""Nodes that share a folder or a bucket with no server: one compile per key, whoever comes when, whoever dies.

What happens to a key whose holder is killed is in `test_takeover`, damage is in `test_damage`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.waiting import HANG_SECONDS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.sharing import Shared

NODES = 8
KEYS = 5

# A process that asks for all keys, in an order of its own.
PROCESS = """
import hashlib, json, os, random, time
from client import Cache, Compiled, CompilerIdentity, Ir, KeyDocument, Kind, neff

def document(number):
    digest = hashlib.sha256(str(number).encode()).hexdigest()
    return KeyDocument(Kind.GRAPH, Ir("stablehlo", "vhlo", "1.0.0", digest), CompilerIdentity("test", "1"), "t", 1)

def compile():
    time.sleep(0.5)
    data = neff.pack({"a": os.urandom(5000)}, name="n", build_version="v", uuid=os.urandom(16))
    return Compiled({"model.neff": data, "compile.log": b"log"}, 0.5)

cache = Cache.from_environment()
numbers = list(range(KEYS))
random.shuffle(numbers)
found = {number: cache.get_or_compile(document(number), compile) for number in numbers}
counts = cache.statistics.to_json()
cache.close()
digests = [hashlib.sha256(found[number].neff).hexdigest() for number in range(KEYS)]
print(json.dumps({"digests": digests, "counts": counts}))
""".replace("KEYS", str(KEYS))


def run_job(shared: Shared, folder: Path) -> list[dict[str, Any]]:
    """Run one process on each of `NODES` empty nodes, all at the same time, and return what each found."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=shared.environment(folder / f"node-{number}"),
        )
        for number in range(NODES)
    ]
    try:
        found = []
        for process in processes:
            output, errors = process.communicate(timeout=HANG_SECONDS)
            assert process.returncode == 0, errors
            found.append(json.loads(output))
        return found
    finally:
        for process in processes:
            process.kill()
            process.communicate(timeout=HANG_SECONDS)


def total(results: list[dict[str, Any]], count: str) -> int:
    return sum(result["counts"][count] for result in results)


@pytest.mark.parametrize("shared", ["folder", "s3"], indirect=True)
@pytest.mark.share(1)
def test_a_cold_job_compiles_each_key_once_and_the_next_job_none(shared: Shared, tmp_path: Path) -> None:
    first = run_job(shared, tmp_path / "first")
    assert total(first, "compiles") == KEYS
    assert total(first, "errors") == 0
    assert len({tuple(result["digests"]) for result in first}) == 1

    second = run_job(shared, tmp_path / "second")
    assert total(second, "compiles") == 0
    assert total(second, "errors") == 0
    assert sum(result["counts"]["hits"]["remote"] for result in second) == NODES * KEYS
    assert {tuple(result["digests"]) for result in second} == {tuple(first[0]["digests"])}

    names = shared.files.names()
    assert sum(name.endswith("/entry.json") for name in names) == KEYS
    leases = [json.loads(shared.files.read(name)) for name in names if "/lease-" in name]
    assert len(leases) >= KEYS
    assert {lease["state"] for lease in leases} == {"released"}
