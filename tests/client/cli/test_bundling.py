from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from client.transports import open_transport
from tests.client.cli.conftest import CommandLine
from tests.client.programs import compiled, document, entry_of

if TYPE_CHECKING:
    from pathlib import Path

    from client.wire import Entry


@pytest.fixture
def exported(shared: CommandLine) -> tuple[CommandLine, list[Entry], Path]:
    entries = [shared.share(document(name)) for name in "abc"]
    bundle = shared.folder / "plan.bundle"
    ran = shared.run("bundle", "export", shared.plan(*entries), str(bundle))
    assert ran.status == 0, ran
    return shared, entries, bundle


def _elsewhere(here: CommandLine, name: str = "elsewhere") -> CommandLine:
    """A machine that no cache of the first one reaches."""
    folder = here.folder / name
    folder.mkdir()
    return CommandLine(folder, str(folder / "shared"), here.config)


def test_a_bundle_carries_a_plan_to_a_machine_that_no_server_reaches(
    exported: tuple[CommandLine, list[Entry], Path],
) -> None:
    here, entries, bundle = exported
    there = replace(_elsewhere(here), project=here.project)
    ran = there.run("bundle", "import", str(bundle), "--json")
    assert (ran.status, ran.json) == (0, {"stored": 3, "present": 0, "skipped": []})
    for entry in entries:
        stored = there.tier.get(entry.kind, entry.key)
        assert stored is not None
        assert stored.entry == entry
    assert there.run("bundle", "import", str(bundle), "--json").json["present"] == 3
    assert there.run("check", here.plan(*entries), "--node").status == 0


def test_a_bundle_fills_another_shared_cache_with_all_outputs(exported: tuple[CommandLine, list[Entry], Path]) -> None:
    here, entries, bundle = exported
    there = replace(_elsewhere(here), project="mirror")
    ran = there.run("bundle", "import", str(bundle), "--to", "shared", "--project", "mirror", "--json")
    assert (ran.status, ran.json["stored"]) == (0, 3)
    assert there.url is not None
    transport = open_transport(there.url, "mirror", {})
    for entry in entries:
        found = transport.entry(entry.kind, entry.key)
        assert found is not None
        assert found.project == "mirror"
        assert transport.read_output(found, "compile.log") == b"all is well\n"


def test_equal_entries_make_equal_bundles_whatever_the_plans_order(
    exported: tuple[CommandLine, list[Entry], Path],
) -> None:
    here, entries, bundle = exported
    again = here.folder / "again.bundle"
    backwards = here.plan(*reversed(entries), *entries, name="backwards.jsonl")
    printed = here.run("bundle", "export", backwards, str(again), "--json").json
    assert again.read_bytes() == bundle.read_bytes()
    assert printed["sha256"] == hashlib.sha256(bundle.read_bytes()).hexdigest()


def test_a_plan_with_a_missing_entry_makes_no_bundle(shared: CommandLine) -> None:
    entry, gone = shared.share(document()), shared.keep(document("gone"))
    bundle = shared.folder / "plan.bundle"
    ran = shared.run("bundle", "export", shared.plan(entry, gone), str(bundle), "--json")
    assert ran.status == 1
    assert ran.json == {"missing": [f"graph/{gone.key}"]}
    assert not bundle.exists()


def test_a_node_without_a_shared_cache_can_be_bundled(alone: CommandLine) -> None:
    entry = alone.keep(document())
    bundle = alone.folder / "plan.bundle"
    assert alone.run("bundle", "export", alone.plan(entry), str(bundle), "--node").status == 0
    there = _elsewhere(alone)
    assert there.run("bundle", "import", str(bundle)).status == 0
    stored = there.tier.get(entry.kind, entry.key)
    assert stored is not None
    assert [output.name for output in stored.entry.outputs] == ["model.neff"]


def test_a_signed_entry_is_never_taken_apart(alone: CommandLine) -> None:
    program = compiled()
    entry = replace(entry_of(document(), program.outputs), signature={"alg": "ed25519", "key_id": "k", "value": "AA=="})
    alone.tier.tree.claim()
    alone.tier.put(entry, program.neff)
    plan, bundle = alone.plan(entry), alone.folder / "plan.bundle"
    assert alone.run("check", plan, "--node").status == 0
    ran = alone.run("bundle", "export", plan, str(bundle), "--node")
    assert ran.status == 2
    assert "signed" in ran.stderr
    assert not bundle.exists()


def test_a_damaged_bundle_leaves_nothing_behind(exported: tuple[CommandLine, list[Entry], Path]) -> None:
    here, _, bundle = exported
    raw = bytearray(bundle.read_bytes())
    raw[len(raw) // 2] ^= 1
    bundle.write_bytes(raw)
    there = _elsewhere(here)
    for command in ("verify", "import"):
        ran = there.run("bundle", command, str(bundle))
        assert ran.status == 1
        assert f"the bundle {bundle} is refused" in ran.stderr
    assert not there.node_dir.exists()


def test_a_bundle_that_announces_too_much_is_refused_by_name_of_the_option(
    exported: tuple[CommandLine, list[Entry], Path],
) -> None:
    here, _, bundle = exported
    ran = _elsewhere(here).run("bundle", "import", str(bundle), "--max-bytes", "100")
    assert ran.status == 1
    assert "--max-bytes" in ran.stderr


def test_a_bundle_too_large_for_the_node_is_refused_before_anything_is_stored(
    exported: tuple[CommandLine, list[Entry], Path],
) -> None:
    here, _, bundle = exported
    there = _elsewhere(here)
    ran = there.run("bundle", "import", str(bundle), environment={"NEURON_CACHE_NODE_MAX_BYTES": "100"})
    assert ran.status == 2
    assert "NEURON_CACHE_NODE_MAX_BYTES" in ran.stderr
    assert not list(there.node_dir.rglob("*.neff"))


def test_no_file_is_written_over(folder: CommandLine) -> None:
    plan = folder.plan(folder.share(document()))
    precious = folder.folder / "precious"
    precious.write_text("precious")
    assert folder.run("bundle", "export", plan, str(precious)).status == 2
    assert precious.read_text() == "precious"
    assert folder.run("bundle", "export", plan, str(precious), "--force").status == 0
    assert folder.run("bundle", "verify", str(precious)).status == 0
    assert [path.name for path in folder.folder.glob(".precious*")] == []


def test_an_entry_without_a_key_document_is_reported_and_not_published(alone: CommandLine) -> None:
    program = compiled()
    entry = alone.keep(document(), program)
    alone.tier.remove(entry.kind, entry.key)
    alone.tier.put(entry.without_document(), program.neff)
    bundle = alone.folder / "plan.bundle"
    alone.run("bundle", "export", alone.plan(entry), str(bundle), "--node")
    ran = _elsewhere(alone).run("bundle", "import", str(bundle), "--to", "shared", "--json")
    assert (ran.status, ran.json["skipped"]) == (1, [f"graph/{entry.key}"])
    assert "key document" in ran.stderr


def test_what_is_printed_for_programs_is_json(exported: tuple[CommandLine, list[Entry], Path]) -> None:
    here, _, bundle = exported
    value = here.run("bundle", "verify", str(bundle), "--json").json
    assert value["entries"] == 3
    assert json.loads(json.dumps(value)) == value
