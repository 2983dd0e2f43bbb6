"""A shared cache that is gone is found out once on a node, not by each of its processes in turn."""

from __future__ import annotations

import os
import time

import pytest

from client.errors import Denied, Refused, Unreachable
from client.node.files import Files
from client.node.outage import LIFE, Outage
from client.node.tree import Tree
from tests.client.programs import compiled, document


@pytest.fixture
def notes(tmp_path):
    """Two processes' views on one node tier."""
    return [Outage(Tree(tmp_path, shared=False, files=Files()), "http://cache", clock=_Ticks()) for _ in range(2)]


class _Ticks:
    """Each look is a second after the last."""

    def __init__(self) -> None:
        self._time = 0.0

    def __call__(self) -> float:
        self._time += 1
        return self._time


def test_what_one_process_notes_another_hears_once_and_itself_never(notes):
    one, two = notes
    assert not two.heard()
    one.note()
    assert two.heard()
    assert not two.heard()
    assert not one.heard()


def test_an_old_note_and_that_of_another_address_mean_nothing(notes, tmp_path):
    one, _ = notes
    one.note()
    tree = Tree(tmp_path, shared=False, files=Files())
    assert not Outage(tree, "http://another").heard()
    [note] = (tmp_path / "v1" / ".outages").iterdir()
    os.utime(note, (time.time() - LIFE - 5,) * 2)
    assert not Outage(tree, "http://cache").heard()


def test_a_node_tier_that_cannot_be_had_tells_nobody_anything(tmp_path):
    outage = Outage(Tree(tmp_path / "nowhere", shared=False, files=Files()), "http://cache")
    outage.note()
    assert not outage.heard()


def _raise(error):
    def fault() -> None:
        raise error

    return fault


def test_the_processes_of_a_node_lose_their_seconds_once_together(make_cache, store, caplog):
    for method in ("fetch", "acquire", "publish"):
        store.faults[method] = _raise(Unreachable("no answer"))
    for number in range(6):
        cache = make_cache(store, node="one")
        for program in range(3):
            made = cache.get_or_compile(document(f"{number} {program}"), compiled)
            assert made.source == "compile"
    assert store.calls["fetch"] + store.calls["acquire"] + store.calls["publish"] <= 4
    warnings = [record for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 6, "each process says so once"


@pytest.mark.parametrize("error", [Denied("401"), Refused("slow down", status=429)])
def test_what_a_server_says_to_one_process_is_not_for_the_others(make_cache, store, error):
    store.faults["fetch"] = _raise(error)
    for number in range(3):
        make_cache(store, node="one").get_or_compile(document(f"{number}"), compiled)
    assert store.calls["fetch"] == 3


def test_a_job_that_must_hear_of_faults_asks_for_itself(make_cache, store):
    store.faults["fetch"] = _raise(Unreachable("no answer"))
    for number in range(4):
        make_cache(store, node="one").get_or_compile(document(f"{number}"), compiled)
    with pytest.raises(Unreachable):
        make_cache(store, node="one", on_error="fail").get_or_compile(document("strict"), compiled)
