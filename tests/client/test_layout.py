from __future__ import annotations

import pytest

from client import layout
from client.errors import WireError
from client.names import Kind, check_project
from client.wire import Output

KEY = "ab" + "0" * 62


def test_the_layout_of_stores_does_not_move() -> None:
    """What is written today must be found by every later version."""
    output = Output("compile.log", "c" * 64, 911, "zstd", 402)
    assert layout.entry_path("team-a", Kind.GRAPH, KEY) == f"team-a/graph/ab/{KEY}/entry.json"
    assert layout.output_path("team-a", Kind.GRAPH, KEY, output) == f"team-a/graph/ab/{KEY}/{'c' * 64}.zst"
    assert layout.output_file("c" * 64, "identity") == "c" * 64
    assert layout.meta_path("tokens", "id-1", 12) == "meta/tokens/id-1/000000000012.json"
    assert layout.lease_file(7) == "lease-00000007.json"
    assert layout.quarantine_folder("team-a", Kind.CC, KEY, "20261129T230000Z") == (
        f"quarantine/team-a/cc/{KEY}/20261129T230000Z"
    )


@pytest.mark.parametrize("generation", [0, 1, 99_999_999, 100_000_000])
def test_generations_are_read_back_from_names(generation: int) -> None:
    assert layout.lease_generation(layout.lease_file(generation)) == generation


@pytest.mark.parametrize("name", ["lease-1.json", "lease-00000001.json.tmp", "lease--0000001.json", "entry.json"])
def test_other_names_are_no_generations(name: str) -> None:
    assert layout.lease_generation(name) is None


def test_no_name_from_elsewhere_leads_out_of_the_store() -> None:
    for bad in ("..", "../x", "a/b", "", "A", "a\0"):
        with pytest.raises(WireError):
            layout.entry_folder(bad, Kind.GRAPH, KEY)
        with pytest.raises(WireError):
            layout.entry_folder("default", Kind.GRAPH, bad)
        with pytest.raises(WireError):
            layout.output_file(bad, "identity")
        if bad != "A":
            with pytest.raises(ValueError, match="cannot stand"):
                layout.meta_folder("tokens", bad)
            with pytest.raises(ValueError, match="cannot stand"):
                layout.quarantine_folder("default", Kind.GRAPH, KEY, bad)


@pytest.mark.parametrize("name", [layout.META, layout.QUARANTINE])
def test_a_project_cannot_stand_where_the_store_keeps_its_own(name: str) -> None:
    with pytest.raises(WireError, match="own files"):
        check_project(name)
