from __future__ import annotations

import json
import os
import socket
from typing import TYPE_CHECKING

from client.names import Kind
from tests.client.programs import compiled, document

if TYPE_CHECKING:
    from tests.client.cli.conftest import CommandLine


def test_status_says_what_is_in_effect_and_what_is_here(shared: CommandLine) -> None:
    shared.keep(document("a"))
    shared.keep(document("b"))
    value = shared.run("status", "--json").json
    assert value["node"]["entries"] == 2
    assert value["node"]["by_kind"] == {"graph": 2}
    assert value["shared"]["answers"] is True
    assert value["project"] == shared.project
    assert str(shared.node_dir) in shared.run("status").stdout


def test_status_of_an_unreachable_cache_is_still_printed(alone: CommandLine) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    ran = alone.run("status", "--json", "--url", address)
    assert ran.status == 3
    assert ran.json["shared"] == {"address": address, "answers": False, "seconds": None}
    assert address in ran.stderr


def test_entries_are_listed_newest_first_and_by_kind(folder: CommandLine) -> None:
    first = folder.keep(document("a"))
    second = folder.keep(document("b", Kind.EAGER))
    assert {entry["key"] for entry in folder.run("ls", "--json").json} == {first.key, second.key}
    (only,) = folder.run("ls", "--kind", "eager", "--json").json
    assert only["key"] == second.key
    head, *lines = [line.split("\t") for line in folder.run("ls").stdout.splitlines()]
    assert head == ["entry", "created", "size", "compile", "label", "host"]
    # whole keys and times: programs read this
    assert [line[:2] for line in lines] == [
        [f"{entry.kind}/{entry.key}", entry.created]
        for entry in sorted((first, second), key=lambda entry: (entry.created, entry.key), reverse=True)
    ]


def test_a_shared_folder_is_listed_and_a_server_says_why_not(folder: CommandLine, served: CommandLine) -> None:
    entry = folder.share(document())
    assert [found["key"] for found in folder.run("ls", "--shared", "--json").json] == [entry.key]
    ran = served.run("ls", "--shared")
    assert ran.status == 2
    assert "neff-cache show KEY" in ran.stderr


def test_a_key_is_found_by_its_first_digits(folder: CommandLine) -> None:
    entry = folder.share(document())
    value = folder.run("show", entry.key[:8], "--json").json
    assert value["entry"] == entry.to_json()
    assert value["where"] == [f"file://{folder.url}"]
    folder.keep(document())
    assert len(folder.run("show", f"graph/{entry.key[:8]}", "--json").json["where"]) == 2
    text = folder.run("show", entry.key).stdout
    assert entry.outputs[0].sha256 in text
    assert "trn2" in text


def test_a_key_that_is_nowhere_is_a_no_and_a_malformed_one_is_wrong_usage(shared: CommandLine) -> None:
    assert shared.run("show", "0" * 64).status == 1
    for text in ("abc", "../../etc", "graph/" + "G" * 64, "nothing/" + "0" * 64):
        ran = shared.run("show", text)
        assert ran.status == 2
        assert "expected" in ran.stderr


def test_a_programs_bytes_come_out_as_they_went_in(shared: CommandLine) -> None:
    program = compiled()
    entry = shared.share(document(), program)
    target = shared.folder / "out.neff"
    assert shared.run("get", entry.key, "-o", str(target)).status == 0
    assert target.read_bytes() == program.neff
    again = shared.run("get", entry.key, "-o", str(target))
    assert again.status == 2
    assert "--force" in again.stderr
    log = shared.folder / "log"
    assert shared.run("get", entry.key, "--output", "compile.log", "-o", str(log)).status == 0
    assert log.read_bytes() == b"all is well\n"
    assert shared.run("get", entry.key, "--output", "nothing", "-o", str(log), "--force").status == 1
    assert shared.run("get", "1" * 64).status == 1


def test_a_program_that_was_compiled_elsewhere_can_be_published(shared: CommandLine) -> None:
    program = compiled()
    described, built = shared.folder / "key.json", shared.folder / "model.neff"
    described.write_text(json.dumps(document("new").to_json()))
    built.write_bytes(program.neff)
    first = shared.run("put", str(described), str(built), "--seconds", "12.5", "--json")
    assert (first.status, first.json["created"]) == (0, True)
    assert first.json["entry"]["key"] == document("new").key
    second = shared.run("put", str(described), str(built), "--json")
    assert (second.status, second.json["created"]) == (0, False)
    shown = shared.run("show", document("new").key, "--json").stdout
    described.write_text(shown)
    assert shared.run("put", str(described), str(built), "--json").json["created"] is False


def test_a_file_that_is_no_program_is_not_published(alone: CommandLine) -> None:
    described, built = alone.folder / "key.json", alone.folder / "model.neff"
    described.write_text(json.dumps(document().to_json()))
    built.write_bytes(b"no neff")
    ran = alone.run("put", str(described), str(built))
    assert ran.status == 2
    assert "no NEFF" in ran.stderr
    described.write_text("[]")
    assert alone.run("put", str(described), str(built)).status == 2
    assert not alone.node_dir.exists()


def test_a_node_is_shrunk_to_a_size(alone: CommandLine) -> None:
    for name in "abcdef":
        alone.keep(document(name), compiled(size=20_000))
    value = alone.run("gc", "--max-bytes", "60KiB", "--json").json
    assert value["removed"] > 0
    assert value["left"] == len(alone.run("ls", "--json").json) < 6
    ran = alone.run("gc", "--max-bytes", "much")
    assert ran.status == 2
    assert "5GiB" in ran.stderr


def test_gc_leaves_a_folder_of_somebody_else_alone_and_says_so(alone: CommandLine) -> None:
    theirs = alone.node_dir / "v1/train/images/dogs/batch1/img1.jpg"
    theirs.parent.mkdir(parents=True)
    alone.node_dir.chmod(0o700)
    theirs.write_bytes(b"a dog")
    for path in (theirs, *theirs.parents[:5]):
        os.utime(path, (1, 1))
    ran = alone.run("gc", "--max-bytes", "1")
    assert (ran.status, ran.stdout) == (2, "")
    assert ran.stderr.count("\n") == 1
    for part in (str(alone.node_dir), "v1/train/images", "NEURON_CACHE_NODE_DIR"):
        assert part in ran.stderr
    assert theirs.read_bytes() == b"a dog"
    found = alone.run("doctor")
    assert found.status == 1
    assert "v1/train/images" in found.stdout.replace("\n", "")
    assert not (alone.node_dir / "v1" / "CACHEDIR.TAG").exists()


def test_a_node_tier_that_others_can_write_is_refused_in_one_sentence(alone: CommandLine) -> None:
    entry = alone.keep(document())
    alone.node_dir.chmod(0o777)
    for words in (("ls",), ("show", entry.key), ("check", alone.plan(entry), "--node")):
        ran = alone.run(*words)
        assert ran.status == 2, words
        assert "chmod o-w" in ran.stderr


def test_a_setting_that_means_nothing_is_said_and_followed_by_the_default(alone: CommandLine) -> None:
    ran = alone.run("status", "--json", environment={"NEURON_CACHE_MODE": "sometimes"})
    assert ran.status == 0
    assert ran.json["mode"] == "rw"
    assert "NEURON_CACHE_MODE" in ran.stderr


def test_an_address_without_a_scheme_is_answered_with_a_guess(alone: CommandLine) -> None:
    ran = alone.run("check", alone.plan(alone.keep(document())), "--url", "cache.example:8080")
    assert ran.status == 2
    assert "http://cache.example:8080" in ran.stderr


def test_a_password_in_an_address_is_never_repeated(alone: CommandLine) -> None:
    for command in (("status",), ("doctor",)):
        ran = alone.run(*command, "--url", "http://user:hunter2@cache.example:8080")
        assert ran.status != 0
        assert "hunter2" not in ran.stdout + ran.stderr
