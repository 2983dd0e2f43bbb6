"""The main job: ranks on two nodes fill a shared cache together, and the next job compiles nothing."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.support.jobs import Rank, job_environment, run_ranks
from tests.support.servers import running_server

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.servers import Server

STEPS = 4
KINDS = {"train_digits": {"eager"}, "train_gpt": {"eager", "graph"}}

pytestmark = pytest.mark.timeout(400)


def total(ranks: list[Rank], field: str) -> float:
    return sum(rank.summary[field] for rank in ranks)


def distinct_keys(ranks: list[Rank]) -> set[str]:
    return {key for rank in ranks for key in rank.summary["keys"]}


def warnings_of(rank: Rank) -> list[str]:
    """Lines a rank wrote to standard error that speak of the cache, but for waiting: that is no fault of anybody."""
    lines = [line for line in rank.stderr.splitlines() if "neff-cache" in line or "neff_cache" in line]
    return [line for line in lines if "waiting for" not in line]


def check_cold(ranks: list[Rank], example: str, reference: list[float]) -> None:
    assert total(ranks, "compiles") == len(distinct_keys(ranks)) > 0
    assert all(rank.losses == ranks[0].losses for rank in ranks)
    assert all(abs(ours - cpu) <= 1e-4 * max(1, cpu) for ours, cpu in zip(ranks[0].losses, reference, strict=True))
    assert {kind for rank in ranks for kind, counts in rank.summary["by_kind"].items() if counts["lookups"]} == KINDS[
        example
    ]
    assert not [line for rank in ranks for line in warnings_of(rank)]


def check_warm(ranks: list[Rank], cold: list[Rank]) -> None:
    assert total(ranks, "compiles") == 0
    assert total(ranks, "errors") == 0
    assert all(rank.losses == cold[0].losses for rank in ranks)
    assert distinct_keys(ranks) == distinct_keys(cold)


SOAK = pytest.mark.soak


@pytest.fixture(scope="module", params=["train_gpt", pytest.param("train_digits", marks=SOAK)])
def example(request) -> str:
    return request.param


@pytest.fixture(params=[1, pytest.param(2, marks=SOAK)], ids=["2 nodes", "2 nodes with 2 ranks each"])
def per_node(request) -> int:
    return request.param


@pytest.fixture(scope="module")
def reference(example, tmp_path_factory) -> list[float]:
    folder = tmp_path_factory.mktemp("reference")
    return run_ranks(example, [job_environment(folder, "")], folder, steps=STEPS, device="cpu")[0].losses


def two_nodes(folder: Path, url: str, config: Path | None, per_node: int) -> list[dict[str, str]]:
    """Environments of ranks on two nodes, each of which has a node tier."""
    return [job_environment(folder / f"node-{node}", url, config) for node in (0, 1) for _ in range(per_node)]


def fill(server: Server, example: str, reference: list[float], per_node: int, folder: Path) -> list[Rank]:
    """Run a cold job on two nodes, then the same on a third one, ``node-9``; return what the cold ranks did."""
    cold = run_ranks(example, two_nodes(folder, server.url, server.config, per_node), folder / "cold", steps=STEPS)
    check_cold(cold, example, reference)

    fresh = [job_environment(folder / "node-9", server.url, server.config)] * per_node
    second = run_ranks(example, fresh, folder / "second", steps=STEPS)
    check_warm(second, cold)
    assert sum(rank.summary["hits"]["remote"] for rank in second) == len(distinct_keys(cold))
    return cold


def test_with_a_server_a_cluster_compiles_each_program_once_and_the_next_job_none(
    example, reference, per_node, tmp_path
):
    with running_server(tmp_path / "server") as server:
        cold = fill(server, example, reference, per_node, tmp_path)

        keys = distinct_keys(cold)
        for kind, other in (("eager", "graph"), ("graph", "eager")):
            listed = [{"kind": kind, "key": key} for key in sorted(keys)]
            found = {entry["key"] for entry in server.get("/v1/default/lookup", {"keys": listed})["found"]}
            crossed = [{"kind": other, "key": key} for key in sorted(found)]
            if crossed:
                assert server.get("/v1/default/lookup", {"keys": crossed})["found"] == []
            keys_of_kind = {path.name for path in server.data.glob(f"**/default/{kind}/??/*") if path.is_dir()}
            assert keys_of_kind == found


@SOAK
def test_a_server_that_is_gone_costs_a_warm_node_nothing_and_a_cold_one_its_compiles(example, reference, tmp_path):
    with running_server(tmp_path / "server") as server:
        cold = fill(server, example, reference, 1, tmp_path)
        gone = [job_environment(tmp_path / "node-9", server.url, server.config)]

    check_warm(run_ranks(example, gone, tmp_path / "third", steps=STEPS), cold)

    shutil.rmtree(tmp_path / "node-9")
    fourth = run_ranks(example, gone, tmp_path / "fourth", steps=STEPS)
    assert total(fourth, "compiles") == len(distinct_keys(cold))
    assert all(abs(ours - cpu) <= 1e-4 * max(1, cpu) for ours, cpu in zip(fourth[0].losses, reference, strict=True))
    assert len(warnings_of(fourth[0])) == 1, fourth[0].stderr


@SOAK  # tests/scenario/test_direct.py holds a folder and a bucket to one compile for each key, in lighter processes
def test_with_a_shared_folder_a_cluster_needs_no_server(tmp_path, per_node):
    example = "train_digits"
    own = [job_environment(tmp_path / "reference", "")]
    reference = run_ranks(example, own, tmp_path / "cpu", steps=STEPS, device="cpu")[0].losses
    shared = tmp_path / "shared"
    shared.mkdir()
    # a path and a file URL mean the same
    ranks = two_nodes(tmp_path, str(shared), None, per_node)
    cold = run_ranks(example, ranks, tmp_path / "cold", steps=STEPS)
    check_cold(cold, example, reference)
    fresh = [job_environment(tmp_path / "node-9", shared.as_uri())] * per_node
    check_warm(run_ranks(example, fresh, tmp_path / "second", steps=STEPS), cold)
