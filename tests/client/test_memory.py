from __future__ import annotations

from client.artifact import Artifact
from client.memory import MemoryTier
from client.names import Kind
from tests.client.programs import document, entry_of


def _artifact(name: str, size: int = 100) -> Artifact:
    program = document(name)
    neff = bytes(size)
    return Artifact(entry_of(program, {"model.neff": neff}), neff, "memory")


def test_memory_is_bounded_and_what_was_used_last_stays():
    tier = MemoryTier(300)
    for name in ("a", "b", "c"):
        tier.put(_artifact(name))
    tier.get(Kind.GRAPH, document("a").key)
    tier.put(_artifact("d"))
    held = [name for name in "abcd" if tier.get(Kind.GRAPH, document(name).key) is not None]
    assert held == ["a", "c", "d"]


def test_a_program_beyond_the_bound_displaces_nothing():
    tier = MemoryTier(300)
    tier.put(_artifact("a"))
    tier.put(_artifact("huge", 301))
    assert tier.get(Kind.GRAPH, document("huge").key) is None
    assert tier.get(Kind.GRAPH, document("a").key) is not None


def test_what_is_stored_again_or_removed_is_not_counted_twice():
    tier = MemoryTier(300)
    for _ in range(10):
        tier.put(_artifact("a"))
    tier.put(_artifact("b"))
    tier.remove(Kind.GRAPH, document("b").key)
    tier.remove(Kind.GRAPH, document("b").key)
    tier.put(_artifact("c"))
    tier.put(_artifact("d"))
    assert all(tier.get(Kind.GRAPH, document(name).key) is not None for name in "acd")
