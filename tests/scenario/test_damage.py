"""Damage on a node's disk and on the server's: found by digest, set aside, made again; good entries stay."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

import pytest

from client import Cache, Compiled, CompilerIdentity, Ir, KeyDocument, Kind, neff
from tests.support.jobs import job_environment
from tests.support.servers import running_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from client import Artifact

COUNT = 5


def document(number: int) -> KeyDocument:
    digest = hashlib.sha256(str(number).encode()).hexdigest()
    return KeyDocument(Kind.GRAPH, Ir("stablehlo", "vhlo", "1.0.0", digest), CompilerIdentity("test", "1"), "t", 1)


def compile_one(number: int) -> Compiled:
    members = {"number": str(number).encode(), "code": bytes(range(256)) * 200}
    data = neff.pack(members, name="test", build_version="1", uuid=os.urandom(16))
    return Compiled({"model.neff": data, "compile.log": b"compiled\n"}, 1.0)


def job(environment: dict[str, str]) -> tuple[list[Artifact], dict[str, object]]:
    """Ask for all programs as one job does, and return them with the job's summary."""
    cache = Cache.from_environment(environment)
    try:
        artifacts = [cache.get_or_compile(document(number), lambda n=number: compile_one(n)) for number in range(COUNT)]
        for number, artifact in enumerate(artifacts):
            assert neff.unpack(artifact.neff)["number"] == str(number).encode()
        return artifacts, cache.statistics.to_json()
    finally:
        cache.close()


@pytest.fixture(params=["server", "folder"])
def shared(request, tmp_path) -> Iterator[tuple[str, Path | None, Path]]:
    if request.param == "server":
        with running_server(tmp_path / "server") as server:
            yield server.url, server.config, server.data / "store"
    else:
        folder = tmp_path / "shared"
        folder.mkdir()
        yield str(folder), None, folder


def files_of(folder: Path, key: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for entry in folder.glob(f"**/{key}") for path in entry.iterdir()}


DAMAGE = {
    "truncated": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "flipped": lambda data: data[:1500] + bytes([data[1500] ^ 1]) + data[1501:],
    "other": lambda data: compile_one(99).neff,
}


def damage(path: Path, how: str) -> None:
    data = DAMAGE[how](path.read_bytes())
    path.chmod(0o600)
    path.write_bytes(data)


@pytest.mark.parametrize("how", sorted(DAMAGE))
def test_damage_on_a_nodes_disk_costs_one_fetch_and_nothing_else(shared, tmp_path, how):
    environment = job_environment(tmp_path / "node", shared[0], shared[1])
    first, _ = job(environment)
    damage(next((tmp_path / "node").glob(f"**/{first[2].key}/model.neff")), how)
    good = {artifact.key: files_of(tmp_path / "node", artifact.key) for artifact in first if artifact is not first[2]}

    second, summary = job(environment)
    assert summary["compiles"] == 0
    assert summary["hits"] == {"memory": 0, "disk": COUNT - 1, "remote": 1}
    assert [artifact.neff for artifact in second] == [artifact.neff for artifact in first]
    assert {key: files_of(tmp_path / "node", key) for key in good} == good
    _, third = job(environment)
    assert third["hits"]["disk"] == COUNT


@pytest.mark.parametrize("how", sorted(DAMAGE))
def test_damage_where_the_cluster_stores_costs_one_compile_and_nothing_else(shared, tmp_path, how):
    store = shared[2]
    first, _ = job(job_environment(tmp_path / "node-a", shared[0], shared[1]))
    main = first[2].entry.output()
    assert main is not None
    damage(next(store.glob(f"**/{first[2].key}/{main.sha256}*")), how)
    good = {artifact.key: files_of(store, artifact.key) for artifact in first if artifact is not first[2]}

    second, summary = job(job_environment(tmp_path / "node-b", shared[0], shared[1]))
    assert summary["compiles"] == 1
    assert summary["hits"] == {"memory": 0, "disk": 0, "remote": COUNT - 1}
    assert second[2].neff != first[2].neff
    assert {key: files_of(store, key) for key in good} == good
    # the key is whole again, for everybody
    third, after = job(job_environment(tmp_path / "node-c", shared[0], shared[1]))
    assert after["hits"]["remote"] == COUNT
    assert third[2].neff == second[2].neff
