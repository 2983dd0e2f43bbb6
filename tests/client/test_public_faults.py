"""Faults that users of other caches reported in public, played through here; `docs/cases.md` names the reports."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import client
from client.cache import Cache
from client.errors import Unreachable
from client.names import Kind
from client.transports.base import Fetched
from tests.client.programs import build, compiled, document, entry_of
from tests.client.transports.raw_server import RawServer, answer
from tests.fakes.waiting import HANG_SECONDS

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from client.artifact import Artifact, Compiled
    from tests.client.shared_store import SharedStore
    from tests.client.transports.raw_server import Received

RANKS = 4


def forbidden() -> Compiled:
    pytest.fail("the compiler was started")


def _at_once(caches: list[Cache], work: Callable[[Cache], Any]) -> list[Any]:
    """Return what ``work`` returns for each cache, all begun at one moment."""
    barrier = threading.Barrier(len(caches))

    def begin(cache: Cache) -> Any:
        barrier.wait(HANG_SECONDS)
        return work(cache)

    with ThreadPoolExecutor(len(caches)) as pool:
        return list(pool.map(begin, caches))


# Ranks that do not find the same.


def test_no_rank_waits_for_one_that_found_its_program(make_cache, store: SharedStore) -> None:
    """Two ranks hit on their disks; of the two that miss, one has lost its server. All end with the program."""
    for node in ("0", "1"):
        filled = make_cache(None, node=node)
        filled.get_or_compile(document(), compiled)

    def refused() -> Any:
        raise Unreachable("connection refused")

    cut_off = type(store)()
    cut_off.faults = dict.fromkeys(("fetch", "acquire", "publish"), refused)
    caches = [
        make_cache(None, node="0"),
        make_cache(None, node="1"),
        make_cache(store, node="2"),
        make_cache(cut_off, node="3"),
    ]
    found: list[Artifact] = _at_once(caches, lambda cache: cache.get_or_compile(document(), compiled))
    assert [artifact.source for artifact in found] == ["disk", "disk", "compile", "compile"]


def test_nothing_here_speaks_to_other_ranks() -> None:
    """A compile that needs the others of its group hangs as soon as one of them hits."""
    root = Path(client.__file__).parents[1]
    sources = [path for package in ("client", "neuron_backend") for path in (root / package).rglob("*.py")]
    assert len(sources) > 50
    speaking = ("torch.distributed", "all_gather", "all_reduce(", "init_process_group", "broadcast_object")
    assert [str(path) for path in sources if any(word in path.read_text() for word in speaking)] == []


def test_ranks_whose_programs_differ_get_each_their_own_when_warm(make_cache, store: SharedStore) -> None:
    """A rank's number that is baked into its graph is a constant, so each rank has a key of its own."""

    def run(cache: Cache) -> bytes:
        rank = cache.settings.rank
        return cache.get_or_compile(document(f"a graph that holds rank {rank}"), compiled).neff

    cold = _at_once([make_cache(store, node=f"cold {rank}", rank=rank) for rank in range(2)], run)
    warm = _at_once([make_cache(store, node=f"warm {rank}", rank=rank) for rank in range(2)], run)
    assert warm == cold
    assert cold[0] != cold[1]


def test_ranks_of_a_node_ask_the_server_once_for_what_is_missing(make_cache, store: SharedStore) -> None:
    def slow() -> Compiled:
        time.sleep(1)
        return compiled()

    caches = [make_cache(store) for _ in range(16)]
    found = _at_once(caches, lambda cache: cache.get_or_compile(document(), slow).neff)
    assert len(set(found)) == 1
    assert store.calls["fetch"] == 1
    assert store.calls["acquire"] == 1


def test_what_one_rank_brought_here_beforehand_all_ranks_find(make_cache) -> None:
    make_cache(None).get_or_compile(document(), compiled)
    ranks = [make_cache(None, rank=rank) for rank in range(8)]
    assert {one.source for one in _at_once(ranks, lambda cache: cache.get_or_compile(document(), forbidden))} == {
        "disk"
    }


# Misses that must not last, and lookups that must not be skipped.


def test_a_miss_is_forgotten_as_soon_as_somebody_publishes(make_cache, store: SharedStore) -> None:
    waiting = make_cache(store, node="a")
    assert waiting.lookup(Kind.GRAPH, document().key) is None
    published = make_cache(store, node="b").get_or_compile(document(), compiled)
    for asking in (waiting, make_cache(store, node="c")):
        found = asking.get_or_compile(document(), forbidden)
        assert (found.source, found.neff) == ("remote", published.neff)


def test_no_compiler_is_started_before_a_slow_server_has_answered(make_cache, store: SharedStore) -> None:
    make_cache(store, node="a").get_or_compile(document(), compiled)
    store.faults["fetch"] = lambda: time.sleep(2)
    assert make_cache(store, node="b").get_or_compile(document(), forbidden).source == "remote"


def test_a_server_150_ms_away_is_used_with_the_default_settings(tmp_path: Path) -> None:
    stored = {}
    for number in range(10):
        neff = build()
        stored[document(str(number)).key] = (entry_of(document(str(number)), {"model.neff": neff}), neff)

    def script(request: Received, _: socket.socket) -> bytes:
        time.sleep(0.15)
        key = request.target.rpartition("/")[2]
        if key not in stored:
            return answer(404, b'{"name": "not_found"}', Content_Type="application/problem+json")
        entry, neff = stored[key]
        return answer(200, neff, Neff_Entry=entry.to_header() or "")

    with RawServer(script) as server:
        cache = Cache.from_environment({"NEURON_CACHE_NODE_DIR": str(tmp_path), "NEURON_CACHE_URL": server.url})
        found = [cache.get_or_compile(document(str(number)), forbidden).source for number in range(10)]
        cache.close()
    assert found == ["remote"] * 10


# Caches that are moved, and settings that are changed behind our back.


def test_a_node_tier_that_was_moved_is_whole_where_it_is_now(make_cache, tmp_path: Path) -> None:
    programs = [document(str(number)) for number in range(3)]
    made = [make_cache(None, node="here").get_or_compile(program, compiled).neff for program in programs]
    shutil.move(tmp_path / "here", tmp_path / "there")
    moved = make_cache(None, node="there")
    assert [moved.get_or_compile(program, forbidden).neff for program in programs] == made
    for path in (tmp_path / "there").rglob("*"):
        if path.is_file() and path.name != "model.neff":
            assert str(tmp_path).encode() not in path.read_bytes(), path


JOB = """
import os
from client.cache import Cache
from tests.client.programs import compiled, document

cache = Cache.from_environment()
os.environ["NEURON_CACHE_NODE_DIR"] = os.environ["ELSEWHERE"]  # what a framework does that knows better
print(cache.get_or_compile(document(), compiled).source)
"""


def test_a_framework_that_moves_the_folder_later_does_not_cost_the_second_run_its_hits(tmp_path: Path) -> None:
    said = []
    for number in range(2):
        environ = {
            "PATH": "/usr/bin:/bin",
            "NEURON_CACHE_NODE_DIR": str(tmp_path / "node"),
            "ELSEWHERE": str(tmp_path / f"random-{number}"),
        }
        ran = subprocess.run(
            [sys.executable, "-c", JOB], env=environ, capture_output=True, text=True, timeout=HANG_SECONDS, check=True
        )
        said.append(ran.stdout.strip())
    assert said == ["compile", "disk"]


def test_a_configuration_that_changes_while_it_compiles_is_published_as_it_was_asked_for(
    make_cache, store: SharedStore
) -> None:
    extra: dict[str, Any] = {"env": {"NEURON_FUSE": "1"}}

    def asked() -> Any:
        plain = document()
        return type(plain)(plain.kind, plain.ir, plain.compiler, plain.target, plain.logical_cores, extra=extra)

    key = asked().key

    def mutating() -> Compiled:
        extra["env"]["NEURON_FUSE"] = "0"
        extra["added"] = True
        return compiled()

    make_cache(store, node="a").get_or_compile(asked(), mutating)
    found = store.fetch(Kind.GRAPH, key)
    assert isinstance(found, Fetched)
    assert found.entry.key_document is not None
    extra.clear()
    extra["env"] = {"NEURON_FUSE": "1"}
    assert found.entry.key_document == asked().to_json()
    assert make_cache(store, node="b").get_or_compile(asked(), forbidden).source == "remote"


# What people read.


def test_every_lookup_says_key_tier_bytes_and_seconds_to_who_asks_for_it(
    make_cache, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "neff_cache"):
        made = make_cache(None).get_or_compile(document(), compiled)
        make_cache(None).get_or_compile(document(), forbidden)
        make_cache(None).lookup(Kind.EAGER, "0" * 64)
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    key, size = f"graph/{document().key}", f"{len(made.neff)} bytes"
    assert len(said) == 3
    assert all(words in said[0] for words in (key, "compile", size))
    assert all(words in said[1] for words in (key, "disk", size))
    assert f"eager/{'0' * 64} nowhere" in said[2]


def test_an_entry_of_a_format_that_is_not_known_is_a_miss_and_one_line_that_names_the_format(
    make_cache, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_cache(None).get_or_compile(document(), compiled)
    (described,) = (tmp_path / "node").rglob("entry.json")
    described.write_text(described.read_text().replace('"schema":1', '"schema":7'))
    with caplog.at_level(logging.WARNING, "neff_cache"):
        cache = make_cache(None)
        assert cache.get_or_compile(document(), compiled).source == "compile"
    (said,) = [record.getMessage() for record in caplog.records]
    assert "schema 7" in said


@pytest.mark.parametrize("length", [300, 5000], ids=["a name", "a path"])
def test_a_folder_with_too_long_a_name_costs_one_warning_and_no_job(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, length: int
) -> None:
    node = tmp_path / ("d" * 300 if length == 300 else f"{'d' * 200}/" * (length // 200))
    with caplog.at_level(logging.WARNING, "neff_cache"):
        cache = Cache.from_environment({"NEURON_CACHE_NODE_DIR": str(node)})
        for number in range(3):
            assert cache.get_or_compile(document(str(number)), compiled).source == "compile"
        cache.close()
    assert len(caplog.records) == 1
    said = caplog.records[0].getMessage()
    assert "too long a name" in said
    assert len(said) < 400
