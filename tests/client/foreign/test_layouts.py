from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from client.errors import ConfigurationError, WireError
from client.foreign.layout import State
from client.foreign.names import PATTERNS, ForeignName
from client.foreign.npc import target_in
from client.foreign.scan import Why, scan
from client.foreign.table import LAYOUTS, guess
from client.foreign.tree import Listed
from client.names import MAIN_OUTPUT, check_output
from tests.support import foreign_trees

if TYPE_CHECKING:
    from client.foreign.layout import Layout
    from tests.support.foreign_trees import ForeignEntry


def _listed(entry: ForeignEntry, *more: str, without: str = "") -> list[Listed]:
    files = [file for file in (*entry.files, *more) if file != without]
    return [Listed(f"{entry.folder}/{file}", 1, 5.0) for file in files]


@pytest.fixture(params=foreign_trees.LABELS)
def label(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def layout(label: str) -> Layout:
    return LAYOUTS[label]


def test_an_entry_as_its_cache_writes_it_is_recognised_whole(label: str, layout: Layout) -> None:
    entry = foreign_trees.made(label, "a")
    found = scan(_listed(entry), layout)
    assert found.left_out == []
    (candidate,) = found.complete
    assert candidate.name == entry.name
    assert PATTERNS[layout.kept_as].fullmatch(candidate.name)
    stored = {file for file in entry.files if file != layout.marker}
    assert {listed.path.rpartition("/")[2] for listed in candidate.files.values()} == stored
    assert MAIN_OUTPUT in candidate.files
    for output in candidate.files:
        check_output(output)


def test_every_stored_file_finds_its_way_back(label: str, layout: Layout) -> None:
    entry = foreign_trees.made(label, "a")
    outputs = layout.outputs(entry.name)
    assert len(set(outputs.values())) == len(outputs)
    for file in outputs:
        place = layout.place(f"{layout.folder(entry.name)}/{file}")
        assert place is not None
        assert tuple(place) == (entry.name, file)


def test_without_its_marker_an_entry_is_half_written(label: str, layout: Layout) -> None:
    entry = foreign_trees.made(label, "a")
    if layout.marker is None:
        pytest.skip("this cache has no marker: it renames whole files")
    found = scan(_listed(entry, without=layout.marker), layout)
    assert (found.complete, [each.why for each in found.left_out]) == ([], [Why.HALF])


def test_what_somebody_holds_the_lock_of_is_left_out(label: str, layout: Layout) -> None:
    entry = foreign_trees.made(label, "a")
    lock = f"{entry.name}.lock" if layout.is_single else "model.hlo_module.pb.lock"
    found = scan(_listed(entry, lock), layout)
    assert (found.complete, [each.why for each in found.left_out]) == ([], [Why.LOCKED])


def test_a_failed_compile_is_left_out_even_with_a_program_beside_it() -> None:
    found = scan(_listed(foreign_trees.npc("a"), "model.log"), LAYOUTS["npc"])
    assert (found.complete, [each.why for each in found.left_out]) == ([], [Why.FAILED])


@pytest.mark.parametrize(
    "path",
    [
        "README",
        "neuronxcc-2.27.5334.0+f702b353/MODULE_1+abcdef01/run.sh",
        "neuronxcc-2.27.5334.0+f702b353/MODULE_1+abcdef01/deeper/model.neff",
        "neuronxcc-2.27.5334.0+f702b353/MODULE_1+abcdefgh/model.neff",
        "neuronxcc-2.27.5334.0+f702b353/0_REGISTRY/model.neff",
        "neuronxcc-../MODULE_/model.neff",
        f"neuron/compile_cache/{'a' * 32}/graph_{'b' * 32}.neff",
        f"neuron/compile_cache/{'A' * 32}/graph.hlo",
        f"ab/cd/{'a' * 32}.neff",
        f"aa/aa/{'a' * 31}.neff",
        f"aa/aa/{'a' * 32}.so",
    ],
)
def test_a_file_of_no_layout_is_never_taken_for_a_part_of_an_entry(path: str, layout: Layout) -> None:
    found = scan([Listed(path, 1, 5.0)], layout)
    assert found.complete == []
    assert [(each.why, each.what) for each in found.left_out] == [(Why.UNKNOWN, path)]


def test_one_refused_file_keeps_its_whole_entry_out(label: str, layout: Layout) -> None:
    first, *others = _listed(foreign_trees.made(label, "a"))
    found = scan([first._replace(refusal="is a symbolic link"), *others], layout)
    assert (found.complete, [each.why for each in found.left_out]) == ([], [Why.REFUSED])


def test_the_layout_is_guessed_by_what_most_names_look_like(label: str, layout: Layout) -> None:
    paths = [listed.path for graph in "abc" for listed in _listed(foreign_trees.made(label, graph))]
    assert guess([*paths, "README"], "here") is layout


def test_a_tree_of_no_cache_is_refused_with_what_to_try() -> None:
    with pytest.raises(ConfigurationError, match="--layout"):
        guess(["a", "b/c"], "here")


@pytest.mark.parametrize(
    ("text", "digits"),
    [("", "d41d8cd9"), ('["--target=trn1"]', "e30acd3a"), ("--model-type=transformer", "abb26765")],
)
def test_flags_hashes_are_those_seen_in_public_entries(text: str, digits: str) -> None:
    assert foreign_trees.flags_hash(text) == digits


@pytest.mark.parametrize(
    ("flags", "target"),
    [
        ('["--target=trn1", "-O1"]', "trn1"),
        ('["--target", "trn2"]', "trn2"),
        ("--model-type=transformer --target trn2", "trn2"),
        ('["--target=trn1", "--target=inf2"]', "inf2"),
        ('["-O1"]', None),
        ("", None),
    ],
)
def test_the_target_that_the_flags_name_is_the_right_most(flags: str, target: str | None) -> None:
    assert target_in(flags.encode()) == target


@pytest.mark.parametrize(
    "change",
    [
        {"layout": "else"},
        {"name": "../../x"},
        {"name": None},
        {"name": "neuronxcc-1/MODULE_1+abcdef01\n"},
        {"target": 1},
    ],
)
def test_a_name_that_could_leave_its_folder_is_no_name(change: dict[str, object]) -> None:
    name = ForeignName("npc", foreign_trees.npc("a").name, foreign_trees.VERSION, "trn2")
    assert ForeignName.of(name.document()) == name
    with pytest.raises(WireError):
        ForeignName.of({**name.document(), **change})


def test_states_are_told_apart_without_a_program(label: str, layout: Layout) -> None:
    entry = foreign_trees.made(label, "a")
    program = next(file for file, output in layout.outputs(entry.name).items() if output == MAIN_OUTPUT)
    assert layout.state(entry.name, set(entry.files)) is State.COMPLETE
    assert layout.state(entry.name, set(entry.files) - {program}) is State.HALF
