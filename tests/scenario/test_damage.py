"""Damage on a node's disk and on the server's: found by digest, set aside, made again; good entries stay."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

import pytest

from client import Cache, Compiled, CompilerIdentity, Ir, KeyDocument, Kind, neff
from tests.support.stored import FilesInFolder

if TYPE_CHECKING:
    from client import Artifact
    from tests.support.stored import StoredFiles

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


def files_of(store: StoredFiles, key: str) -> dict[str, bytes]:
    return {name: store.read(name) for name in store.names() if f"/{key}/" in name}


DAMAGE = {
    "truncated": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "flipped": lambda data: data[:1500] + bytes([data[1500] ^ 1]) + data[1501:],
    "other": lambda data: compile_one(99).neff,
}


def damage(store: StoredFiles, artifact: Artifact, how: str) -> None:
    """Damage the main output, which a node stores by its name and a cluster by its digest."""
    output = artifact.entry.output()
    assert output is not None
    names = {"model.neff", output.sha256, f"{output.sha256}.zst"}
    found = [name for name in files_of(store, artifact.key) if name.rpartition("/")[2] in names]
    assert len(found) == 1
    store.write(found[0], DAMAGE[how](store.read(found[0])))


@pytest.mark.parametrize("how", sorted(DAMAGE))
@pytest.mark.share(1)
def test_damage_on_a_nodes_disk_costs_one_fetch_and_nothing_else(shared, tmp_path, how):
    environment = shared.environment(tmp_path / "node")
    first, _ = job(environment)
    node = FilesInFolder(tmp_path / "node")
    damage(node, first[2], how)
    good = {artifact.key: files_of(node, artifact.key) for artifact in first if artifact is not first[2]}

    second, summary = job(environment)
    assert summary["compiles"] == 0
    assert summary["hits"] == {"memory": 0, "disk": COUNT - 1, "remote": 1}
    assert [artifact.neff for artifact in second] == [artifact.neff for artifact in first]
    assert {key: files_of(node, key) for key in good} == good
    _, third = job(environment)
    assert third["hits"]["disk"] == COUNT


@pytest.mark.parametrize("how", sorted(DAMAGE))
@pytest.mark.share(1)
def test_damage_where_the_cluster_stores_costs_one_compile_and_nothing_else(shared, tmp_path, how):
    first, _ = job(shared.environment(tmp_path / "node-a"))
    damage(shared.files, first[2], how)
    good = {artifact.key: files_of(shared.files, artifact.key) for artifact in first if artifact is not first[2]}

    second, summary = job(shared.environment(tmp_path / "node-b"))
    assert summary["compiles"] == 1
    assert summary["hits"] == {"memory": 0, "disk": 0, "remote": COUNT - 1}
    assert second[2].neff != first[2].neff
    assert {key: files_of(shared.files, key) for key in good} == good
    # the key is whole again, for everybody
    third, after = job(shared.environment(tmp_path / "node-c"))
    assert after["hits"]["remote"] == COUNT
    assert third[2].neff == second[2].neff
