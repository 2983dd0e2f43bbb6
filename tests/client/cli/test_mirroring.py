from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from client import neff
from client.foreign.names import ForeignName
from client.names import MAIN_OUTPUT, Kind
from client.transports import open_transport
from tests.client.programs import document, entry_of
from tests.fakes.programs import install_neuronx_cc
from tests.support import foreign_trees
from tests.support.foreign_trees import TARGET, VERSION
from tests.support.s3 import seaweedfs, use_credentials
from tests.support.servers import running_server

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.client.cli.conftest import CommandLine, Ran

pytestmark = pytest.mark.once

HOST = ("--compiler-version", VERSION, "--target", TARGET)
ALL = (*HOST, "--compiled-after", "any")


@pytest.fixture(params=foreign_trees.LABELS)
def label(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def _tree(root: Path, label: str, graphs: str = "abc") -> Path:
    for graph in graphs:
        foreign_trees.made(label, graph).write(root)
    return root


def _entries(label: str, root: Path) -> dict[str, dict[str, bytes]]:
    return foreign_trees.taken_for_complete(label, root)


def _put(line: CommandLine, name: ForeignName, outputs: Mapping[str, bytes]) -> None:
    """Publish a foreign entry past our own commands, as some other client might."""
    assert line.url is not None
    entry = replace(
        entry_of(document(), outputs, line.project), kind=Kind.FOREIGN, key=name.key, key_document=name.document()
    )
    transport = open_transport(line.url, line.project, {"XDG_CONFIG_HOME": str(line.config)})
    try:
        transport.publish(entry, outputs, None)
    finally:
        transport.close()


def _left_out(ran: Ran) -> list[tuple[str, str]]:
    return [(each["why"], each["what"]) for each in ran.json["left_out"]]


def test_a_tree_goes_into_the_shared_cache_and_comes_out_elsewhere_byte_for_byte(
    shared: CommandLine, label: str
) -> None:
    here = _tree(shared.folder / "here", label)
    plan = str(shared.folder / "plan.jsonl")
    first = shared.run("import", str(here), "--layout", label, *ALL, "--plan", plan, "--json")
    assert (first.status, first.json["imported"], first.json["present"]) == (0, 3, 0)
    again = shared.run("import", str(here), "--layout", label, *ALL, "--json")
    assert (again.status, again.json["imported"], again.json["present"], again.json["bytes"]) == (0, 0, 3, 0)
    there = shared.folder / "there"
    out = shared.run("export", plan, str(there), "--layout", label, "--json")
    assert (out.status, out.json["exported"], out.json["left_out"]) == (0, 3, [])
    assert _entries(label, there) == _entries(label, here)
    assert shared.run("export", plan, str(there), "--layout", label, "--json").json["present"] == 3
    pulled = shared.folder / "pulled"
    ran = shared.run("sync", str(pulled), "--layout", label, *HOST, "--json")
    assert ran.json["pulled"]["pulled"] == 3
    assert _entries(label, pulled) == _entries(label, here)


def test_failed_locked_and_half_written_entries_and_strange_files_are_left_out_and_named(shared: CommandLine) -> None:
    root = _tree(shared.folder / "here", "npc")
    failed, locked, half = (foreign_trees.npc(name) for name in ("failed", "locked", "half"))
    (failed.write(root, last=2) / "model.log").write_text("NCC_E")
    (locked.write(root) / "model.hlo_module.pb.lock").touch()
    half.write(root, last=3)
    (root / "run.sh").write_text("#!/bin/sh")
    (foreign_trees.npc("a").write(root) / "setup.py").write_text("import os")
    ran = shared.run("import", str(root), *ALL, "--json")
    assert (ran.status, ran.json["imported"]) == (0, 3)
    strange = f"{foreign_trees.npc('a').name}/setup.py"
    assert sorted(_left_out(ran)) == sorted(
        [
            ("failed compile", failed.name),
            ("locked", locked.name),
            ("half written", half.name),
            ("not of this layout", "run.sh"),
            ("not of this layout", strange),
        ]
    )
    text = shared.run("import", str(root), *ALL)
    assert "locked\t1\tleft out" in text.stdout
    assert f"left out, failed compile: {failed.name}" in text.stderr


def test_a_damaged_program_is_not_shared_and_fails_the_import(shared: CommandLine) -> None:
    root = _tree(shared.folder / "here", "npc", "ab")
    torn = foreign_trees.npc("a")
    path = root / torn.folder / "model.neff"
    path.write_bytes(path.read_bytes()[:-5])
    ran = shared.run("import", str(root), *ALL, "--json")
    assert (ran.status, ran.json["imported"], _left_out(ran)) == (1, 1, [("damaged", torn.name)])


def test_a_dry_run_says_what_would_be_done_and_does_nothing(shared: CommandLine, label: str) -> None:
    here = _tree(shared.folder / "here", label)
    plan = shared.folder / "plan.jsonl"
    words = ("import", str(here), "--layout", label, *ALL, "--plan", str(plan))
    ran = shared.run(*words, "--dry-run")
    assert "would be imported\t3" in ran.stdout
    assert not plan.exists()
    assert shared.run(*words, "--json").json["imported"] == 3
    there = shared.folder / "there"
    out = shared.run("export", str(plan), str(there), "--layout", label, "-n", "--json")
    assert out.json["exported"] == 3
    assert not there.exists()


def test_the_layout_need_not_be_named_where_the_names_tell(shared: CommandLine) -> None:
    ran = shared.run("import", str(_tree(shared.folder / "here", "torchneuron")), *ALL, "--json")
    assert ran.json["imported"] == 3


def test_old_files_without_a_compilers_name_are_not_passed_off_as_this_compilers(shared: CommandLine) -> None:
    root = _tree(shared.folder / "here", "torchneuron", "ab")
    real = install_neuronx_cc(shared.folder / "real")
    environment = {
        "PATH": f"{real.directory}:{os.environ['PATH']}",
        "NEURON_PLATFORM_TARGET_OVERRIDE": "trn2",
    }
    old, new = (root / entry.folder / f"{entry.name}.neff" for entry in map(foreign_trees.torchneuron, "ab"))
    os.utime(old, (10**9, 10**9))
    later = new.stat().st_mtime + 1000
    os.utime(new, (later, later))
    ran = shared.run("sync", str(root), "--layout", "torchneuron", "--push", "--json", environment=environment)
    assert ran.status == 0, ran
    pushed = ran.json["pushed"]
    assert pushed["pushed"] == 1
    assert [(each["why"], each["what"]) for each in pushed["left_out"]] == [("older than the compiler", old.stem)]


def test_a_node_is_given_what_its_own_compiler_built_for_its_own_target(shared: CommandLine) -> None:
    root = shared.folder / "here"
    own = foreign_trees.npc("a")
    own.write(root)
    foreign_trees.npc("b", flags=("--target=trn1",)).write(root)
    foreign_trees.npc("c", version="2.21.18209.0+043b1bf7").write(root)
    assert shared.run("import", str(root), *ALL, "--json").json["imported"] == 3
    there = shared.folder / "there"
    assert shared.run("sync", str(there), "--layout", "npc", *HOST, "--json").json["pulled"]["pulled"] == 1
    assert list(_entries("npc", there)) == [own.name]


def test_nothing_that_stands_in_the_directory_is_replaced(shared: CommandLine, label: str) -> None:
    here = _tree(shared.folder / "here", label, "a")
    plan = str(shared.folder / "plan.jsonl")
    shared.run("import", str(here), "--layout", label, *ALL, "--plan", plan)
    there = _tree(shared.folder / "there", label, "a")
    before = _entries(label, there)
    ran = shared.run("export", plan, str(there), "--layout", label, "--json")
    assert (ran.status, ran.json["exported"], ran.json["present"]) == (0, 0, 1)
    assert ran.json["differing"] == [foreign_trees.made(label, "a").name]
    assert _entries(label, there) == before
    assert ", 1 of them another build" not in ran.stdout
    assert "1 of them another build" in shared.run("export", plan, str(there), "--layout", label).stdout


def test_what_a_job_is_writing_or_holds_the_lock_of_is_left_alone(shared: CommandLine) -> None:
    here = _tree(shared.folder / "here", "npc", "abc")
    plan = str(shared.folder / "plan.jsonl")
    shared.run("import", str(here), *ALL, "--plan", plan)
    there = shared.folder / "there"
    (foreign_trees.npc("a").write(there, last=1) / "model.hlo_module.pb.lock").touch()
    foreign_trees.npc("b").write(there, last=2)
    before = sorted(there.rglob("*"))
    ran = shared.run("export", plan, str(there), "--layout", "npc", "--json")
    assert (ran.status, ran.json["exported"]) == (0, 1)
    assert sorted(why for why, _ in _left_out(ran)) == ["half written", "locked"]
    assert [path for path in sorted(there.rglob("*")) if foreign_trees.npc("c").name not in str(path)] == before


def test_entries_that_the_shared_cache_lacks_fail_the_export_and_the_others_are_written(shared: CommandLine) -> None:
    here = _tree(shared.folder / "here", "npc", "a")
    plan = shared.folder / "plan.jsonl"
    shared.run("import", str(here), *ALL, "--plan", str(plan))
    lines = [{"kind": "foreign", "key": "0" * 64}, {"kind": "graph", "key": "1" * 64}]
    plan.write_text(plan.read_text() + "".join(json.dumps(line) + "\n" for line in lines))
    ran = shared.run("export", str(plan), str(shared.folder / "there"), "--layout", "npc", "--json")
    assert (ran.status, ran.json["exported"]) == (1, 1)
    assert sorted(_left_out(ran)) == [
        ("missing in the shared cache", "foreign/" + "0" * 64),
        ("not of this layout", "graph/" + "1" * 64),
    ]


@pytest.mark.parametrize(
    ("outputs", "why"),
    [
        ({MAIN_OUTPUT: b"no program"}, "damaged"),
        ({MAIN_OUTPUT: foreign_trees.program(), "run.sh": b"x"}, "refused"),
        ({"compile_flags.json": b"[]"}, "refused"),
    ],
)
def test_what_another_client_stored_is_checked_before_a_file_is_written(
    shared: CommandLine, outputs: dict[str, bytes], why: str
) -> None:
    name = ForeignName("npc", foreign_trees.npc("a").name, VERSION, TARGET)
    _put(shared, name, outputs)
    there = shared.folder / "there"
    ran = shared.run("sync", str(there), "--layout", "npc", *HOST, "--json")
    assert [each["why"] for each in ran.json["pulled"]["left_out"]] == [why]
    assert [path for path in there.rglob("*") if path.is_file()] == []


def test_a_name_that_contradicts_its_document_is_not_written(shared: CommandLine) -> None:
    other = foreign_trees.npc("a", version="2.21.18209.0+043b1bf7")
    _put(shared, ForeignName("npc", other.name, VERSION, TARGET), {MAIN_OUTPUT: foreign_trees.program()})
    there = shared.folder / "there"
    ran = shared.run("sync", str(there), "--layout", "npc", *HOST, "--json")
    assert [each["why"] for each in ran.json["pulled"]["left_out"]] == ["refused"]
    assert not there.exists() or list(there.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("import", "gs://bucket", *ALL), "expected a directory, or s3://"),
        (("import", "/none/at/all", *ALL), "cannot be read"),
        (("export", "plan.jsonl", "there", "--layout", "tpu"), "npc, libtorch-lite"),
        (("sync", "there", "--layout", "npc"), "--compiler-version"),
        (("sync", "there", "--layout", "npc", "--compiler-version", VERSION), "--target"),
        (("sync", "there", "--layout", "torchneuron", "--push", *HOST), "--compiled-after"),
    ],
)
def test_what_cannot_be_followed_is_said_in_a_sentence(folder: CommandLine, words: tuple[str, ...], said: str) -> None:
    ran = folder.run(*words, environment={"PATH": "/none"})
    assert ran.status == 2
    assert said in ran.stderr


def test_a_shared_cache_that_is_gone_is_told_and_best_effort_lets_the_pod_start(folder: CommandLine) -> None:
    gone = replace(folder, url="http://127.0.0.1:9")
    words = ("sync", str(folder.folder / "there"), "--layout", "npc", *HOST)
    assert gone.run(*words).status == 3
    ran = gone.run(*words, "--best-effort")
    assert ran.status == 0
    assert "nothing was done" in ran.stderr


def test_whoever_may_not_read_or_write_foreign_entries_is_told_so(alone: CommandLine) -> None:
    with running_server(alone.folder / "server", "--anonymous", "all") as server:
        line = replace(alone, url=server.url)  # without the token: what is anonymous covers no foreign entries
        pulled = line.run("sync", str(alone.folder / "there"), "--layout", "npc", *HOST)
        imported = line.run("import", str(_tree(alone.folder / "here", "npc", "a")), *ALL)
        plan = alone.folder / "plan.jsonl"
        plan.write_text(json.dumps({"kind": "foreign", "key": "0" * 64}))
        exported = line.run("export", str(plan), str(alone.folder / "there"), "--layout", "npc")
        for ran in (pulled, imported, exported):
            assert ran.status == 2
            assert "this needs scope read" in ran.stderr


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a bucket on a real S3 server, below a prefix of its own."""
    use_credentials(monkeypatch)
    return seaweedfs().new_url()


def test_a_persistent_cache_in_a_bucket_is_imported_too(folder: CommandLine, bucket: str) -> None:
    from client.s3.bucket import Bucket  # noqa: PLC0415 - needs the bucket's credentials first
    from client.s3.url import BucketUrl  # noqa: PLC0415

    here = _tree(folder.folder / "here", "npc")
    half = foreign_trees.npc("half")
    half.write(here, last=3)
    (here / "neuronxcc-x" / "MODULE_console").mkdir(parents=True)
    store = Bucket(BucketUrl.parse(bucket))
    for path in here.rglob("*"):
        name = str(path.relative_to(here))
        store.create(f"{name}/", b"") if path.is_dir() else store.create(name, path.read_bytes())
    store.create("notes.txt", b"x")
    store.close()
    plan = str(folder.folder / "plan.jsonl")
    ran = folder.run("import", bucket, *HOST, "--plan", plan, "--json")
    assert (ran.status, ran.json["imported"]) == (0, 3)
    assert sorted(_left_out(ran)) == [("half written", half.name), ("not of this layout", "notes.txt")]
    assert folder.run("import", bucket, *HOST, "--json").json["present"] == 3
    there = folder.folder / "there"
    folder.run("export", plan, str(there), "--layout", "npc")
    assert _entries("npc", there) == _entries("npc", here)


def test_a_bucket_serves_as_the_shared_cache_itself(folder: CommandLine, bucket: str) -> None:
    line = replace(folder, url=bucket)
    here = _tree(folder.folder / "here", "torchneuron")
    assert line.run("import", str(here), *ALL, "--json").json["imported"] == 3
    there = folder.folder / "there"
    assert line.run("sync", str(there), "--layout", "torchneuron", *HOST, "--json").json["pulled"]["pulled"] == 3
    assert _entries("torchneuron", there) == _entries("torchneuron", here)


def test_a_bucket_that_refuses_us_is_said_in_a_sentence(
    folder: CommandLine, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_credentials(monkeypatch, secret="wrong")
    ran = folder.run("import", bucket, *HOST)
    assert ran.status == 2
    assert "Traceback" not in ran.stderr


def test_a_pull_into_a_directory_that_a_job_removed_makes_it_again(shared: CommandLine) -> None:
    here = _tree(shared.folder / "here", "npc")
    shared.run("import", str(here), *ALL)
    there = shared.folder / "deep" / "there"
    words = ("sync", str(there), "--layout", "npc", *HOST, "--json")
    assert shared.run(*words).json["pulled"]["pulled"] == 3
    shutil.rmtree(there)
    assert shared.run(*words).json["pulled"]["pulled"] == 3


def test_signed_entries_alone_are_written_where_signatures_are_required(shared: CommandLine) -> None:
    here = _tree(shared.folder / "here", "npc")
    shared.run("import", str(here), *ALL)
    require = {"NEURON_CACHE_SIGNATURES": "require"}
    there = shared.folder / "there"
    ran = shared.run("sync", str(there), "--layout", "npc", *HOST, "--json", environment=require)
    assert (ran.status, ran.json["pulled"]["pulled"]) == (1, 0)
    assert {each["why"] for each in ran.json["pulled"]["left_out"]} == {"signed by nobody who is trusted"}
    ran = shared.run("import", str(here), *ALL, environment=require)
    assert ran.status == 2
    assert "NEURON_CACHE_SIGNING_KEY" in ran.stderr


def test_what_is_brought_in_signed_is_written_where_signatures_are_required(shared: CommandLine) -> None:
    key, trusted = shared.folder / "ci.key", shared.folder / "trusted"
    require = {"NEURON_CACHE_SIGNATURES": "require", "NEURON_CACHE_TRUSTED_KEYS": str(trusted)}
    made = shared.run("key", "generate", str(key))
    assert shared.run("key", "trust", made.stdout.strip(), environment=require).status == 0
    here = _tree(shared.folder / "here", "npc")
    signing = {**require, "NEURON_CACHE_SIGNING_KEY": str(key)}
    assert shared.run("import", str(here), *ALL, environment=signing).status == 0
    there = shared.folder / "there"
    ran = shared.run("sync", str(there), "--layout", "npc", *HOST, "--json", environment=require)
    assert (ran.status, ran.json["pulled"]["pulled"]) == (0, 3)
    assert _entries("npc", there) == _entries("npc", here)


def test_every_program_that_was_brought_in_is_a_whole_one(shared: CommandLine, label: str) -> None:
    here = _tree(shared.folder / "here", label)
    shared.run("import", str(here), "--layout", label, *ALL)
    there = shared.folder / "there"
    shared.run("sync", str(there), "--layout", label, *HOST)
    programs = [path for path in there.rglob("*") if path.name.endswith(".neff")]
    assert len(programs) == 3
    for path in programs:
        neff.validate(path.read_bytes())
