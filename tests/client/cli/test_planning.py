from __future__ import annotations

import hashlib
import os
import shutil
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

from client.cache import Cache
from client.layout import entry_folder
from tests.client.programs import build, compiled, document
from tests.fakes.waiting import HANG_SECONDS

if TYPE_CHECKING:
    from tests.client.cli.conftest import CommandLine
    from tests.support.servers import Server


def test_a_pulled_plan_is_on_this_machines_disk(shared: CommandLine) -> None:
    programs = {name: compiled(size=size) for name, size in (("a", 10), ("b", 5000), ("c", 200_000))}
    entries = [shared.share(document(name), program) for name, program in programs.items()]
    ran = shared.run("pull", shared.plan(*entries), "--json")
    assert ran.status == 0
    sizes = sum(len(program.neff) for program in programs.values())
    assert ran.json == {
        "entries": 3,
        "present": 0,
        "pulled": 3,
        "bytes": sizes,
        "missing": [],
        "gone": [],
        "refused": [],
    }
    for entry, program in zip(entries, programs.values(), strict=True):
        stored = shared.tier.get(entry.kind, entry.key)
        assert stored is not None
        assert stored.neff == program.neff
        assert stored.entry.key_document == entry.key_document


def test_what_is_here_already_is_not_pulled_again(shared: CommandLine) -> None:
    entries = [shared.share(document(name)) for name in "ab"]
    plan = shared.plan(*entries)
    assert shared.run("pull", shared.plan(entries[0], name="half.jsonl")).status == 0
    ran = shared.run("pull", plan, "--json").json
    assert (ran["present"], ran["pulled"]) == (1, 1)
    assert shared.run("pull", plan, "--json").json["present"] == 2


def test_a_damaged_file_here_is_pulled_again(shared: CommandLine) -> None:
    entry = shared.share(document())
    plan = shared.plan(entry)
    shared.run("pull", plan)
    (path,) = shared.node_dir.rglob("model.neff")
    path.write_bytes(b"not what was stored")
    assert shared.run("pull", plan, "--json").json["pulled"] == 1
    assert shared.tier.get(entry.kind, entry.key) is not None


def test_a_missing_entry_is_named_and_the_others_still_come(shared: CommandLine) -> None:
    there = shared.share(document("there"))
    gone = shared.keep(document("gone"))
    shared.tier.remove(gone.kind, gone.key)
    ran = shared.run("pull", shared.plan(there, gone), "--json")
    assert ran.status == 1
    assert [missing["key"] for missing in ran.json["missing"]] == [gone.key]
    assert ran.json["pulled"] == 1


def test_wrong_bytes_in_the_shared_cache_never_reach_a_node(folder: CommandLine) -> None:
    sound, damaged = folder.share(document("sound")), folder.share(document("damaged"))
    main = damaged.output()
    assert main is not None
    assert folder.url is not None
    path = Path(folder.url) / entry_folder("default", damaged.kind, damaged.key) / main.sha256
    path.chmod(0o600)
    path.write_bytes(bytes(main.size))
    ran = folder.run("pull", folder.plan(sound, damaged), "--json")
    assert ran.status == 1
    assert [gone["key"] for gone in ran.json["gone"]] == [damaged.key]
    assert folder.tier.get(damaged.kind, damaged.key) is None
    assert folder.tier.get(sound.kind, sound.key) is not None


def test_wrong_bytes_at_the_server_never_reach_a_node(served: CommandLine, running: Server) -> None:
    entries = [served.share(document(name)) for name in ("one", "two")]
    main = entries[0].output()
    assert main is not None
    (path,) = running.data.rglob(main.sha256)
    path.chmod(0o600)
    path.write_bytes(bytes(main.size))
    ran = served.run("pull", served.plan(*entries), "--json")
    assert ran.status == 1
    assert [gone["key"] for gone in ran.json["gone"]] == [entries[0].key]
    assert ran.json["pulled"] == 1


def test_a_gate_passes_only_a_plan_that_is_whole(shared: CommandLine) -> None:
    entries = [shared.share(document(name)) for name in "ab"]
    assert shared.run("check", shared.plan(*entries)).status == 0
    gone = shared.keep(document("never shared"))
    ran = shared.run("check", shared.plan(*entries, gone), "--json")
    assert ran.status == 1
    assert [missing["key"] for missing in ran.json["missing"]] == [gone.key]
    assert gone.key in shared.run("check", shared.plan(*entries, gone)).stdout


def test_an_entry_without_its_program_does_not_pass_the_gate(folder: CommandLine) -> None:
    entry = folder.share(document())
    assert folder.url is not None
    shutil.move(next(path for path in Path(folder.url).rglob(entry.outputs[0].sha256)), folder.folder / "moved")
    assert folder.run("check", folder.plan(entry)).status == 1


def test_a_gate_can_look_at_the_node_alone(alone: CommandLine) -> None:
    entry = alone.keep(document())
    plan = alone.plan(entry)
    assert alone.run("check", plan, "--node").status == 0
    alone.tier.remove(entry.kind, entry.key)
    assert alone.run("check", plan, "--node").status == 1


def _deaf_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def test_a_server_that_is_gone_is_never_taken_for_a_missing_entry(alone: CommandLine) -> None:
    plan = alone.plan(alone.keep(document()))
    alone.tier.remove(alone.keep(document()).kind, document().key)
    address = f"http://127.0.0.1:{_deaf_port()}"
    for command in ("check", "pull"):
        ran = alone.run(command, plan, "--url", address)
        assert ran.status == 3, ran
        assert address in ran.stderr
        assert "missing" not in ran.stdout


def test_no_rights_are_not_an_empty_cache(served: CommandLine) -> None:
    plan = served.plan(served.share(document()))
    ran = served.run("check", plan, environment={"NEURON_CACHE_TOKEN": "wrong" * 10})
    assert ran.status == 2
    assert "NEURON_CACHE_TOKEN" in ran.stderr


def test_a_plan_that_the_server_keeps_is_found_by_its_name(served: CommandLine, running: Server) -> None:
    entry = served.share(document())
    plan = Path(served.plan(entry)).read_bytes()
    request = urllib.request.Request(
        f"{running.url}/v1/{served.project}/plans/llama-8b",
        plan,
        {"Authorization": f"Bearer {running.token}", "Content-Type": "application/x-ndjson"},
        method="PUT",
    )
    urllib.request.urlopen(request, timeout=HANG_SECONDS).close()
    assert served.run("pull", "llama-8b", "--json").json["pulled"] == 1
    unknown = served.run("pull", "llama-80b")
    assert unknown.status == 2
    assert "neither a file nor a plan" in unknown.stderr


def test_a_plan_comes_through_a_pipe(folder: CommandLine) -> None:
    plan = Path(folder.plan(folder.share(document()))).read_text()
    assert folder.run("check", "-", text=plan).status == 0


def test_a_torn_plan_is_an_error_and_no_shorter_plan(folder: CommandLine) -> None:
    plan = Path(folder.plan(folder.share(document())))
    plan.write_text(plan.read_text() + '{"kind": "graph", "ke')
    ran = folder.run("check", str(plan))
    assert ran.status == 2
    assert "line 2" in ran.stderr


def test_a_plan_too_large_for_the_node_is_refused_before_anything_is_pulled(folder: CommandLine) -> None:
    plan = folder.plan(folder.share(document(), compiled(size=100_000)))
    ran = folder.run("pull", plan, environment={"NEURON_CACHE_NODE_MAX_BYTES": "1000"})
    assert ran.status == 2
    assert "NEURON_CACHE_NODE_MAX_BYTES" in ran.stderr
    assert not list(folder.node_dir.rglob("model.neff"))


def test_piped_output_holds_no_progress_and_no_colour(folder: CommandLine) -> None:
    plan = folder.plan(*(folder.share(document(str(number))) for number in range(3)))
    environment = {**os.environ, **{name: value for name, value in folder.environment.items() if value is not None}}
    done = subprocess.run(
        [sys.executable, "-m", "client.cli", "pull", plan],
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=True,
    )
    assert done.stderr == ""
    assert done.stdout.startswith("3 pulled")
    assert "\x1b" not in done.stdout


def test_a_program_larger_than_a_group_is_pulled_whole(served: CommandLine) -> None:
    large = compiled()
    program = build(18 << 20)
    entry = served.share(document("large"), type(large)({"model.neff": program}, 1.0))
    assert served.run("pull", served.plan(entry)).status == 0
    stored = served.tier.get(entry.kind, entry.key)
    assert stored is not None
    assert hashlib.sha256(stored.neff).digest() == hashlib.sha256(program).digest()


def test_what_is_pulled_is_as_open_to_the_group_as_what_is_compiled(folder: CommandLine) -> None:
    """A temporary file's 0600 that survives its rename keeps the members of a group out."""
    pulled, made = folder.share(document("pulled")), document("made")
    folder.node_dir.mkdir(mode=0o2770)
    folder.node_dir.chmod(0o2770)
    shared = {"NEURON_CACHE_NODE_SHARED": "group"}
    mask = os.umask(0o077)
    try:
        assert folder.run("pull", folder.plan(pulled), environment=shared).status == 0
        cache = Cache.from_environment({"NEURON_CACHE_NODE_DIR": str(folder.node_dir), **shared})
        cache.get_or_compile(made, compiled)
        cache.close()
    finally:
        os.umask(mask)

    def modes(key: str) -> dict[str, str]:
        (place,) = folder.node_dir.rglob(key)
        return {path.name: oct(path.stat().st_mode & 0o7777) for path in (place, *place.iterdir()) if path != place} | {
            "folder": oct(place.stat().st_mode & 0o7777)
        }

    assert (
        modes(pulled.key)
        == modes(made.key)
        == {
            "folder": "0o2770",
            "model.neff": "0o660",
            "entry.json": "0o660",
        }
    )
