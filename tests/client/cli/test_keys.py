"""``neff-cache key``, and what other commands say of signatures."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from client.names import Kind
from client.signing.keys import PrivateKey
from client.signing.trust import TrustList
from client.transports import open_transport
from client.wire import Entry
from tests.client.programs import compiled, document
from tests.client.signing.signers import line, save, signed, write_list

if TYPE_CHECKING:
    from pathlib import Path

    from client.artifact import Compiled
    from tests.client.cli.conftest import CommandLine


def publish(shared: CommandLine, entry: Entry, built: Compiled) -> Entry:
    assert shared.url is not None
    with closing(open_transport(shared.url, shared.project, {"XDG_CONFIG_HOME": str(shared.config)})) as transport:
        return transport.publish(entry, built.outputs, None).entry


def test_a_key_is_made_trusted_bounded_rotated_and_revoked(alone: CommandLine) -> None:
    key, new, file = alone.folder / "ci", alone.folder / "ci-2", alone.folder / "lists" / "trusted"
    named = {"NEURON_CACHE_TRUSTED_KEYS": str(file)}
    made = alone.run("key", "generate", str(key))
    assert made.status == 0
    assert made.stdout.strip() == (alone.folder / "ci.pub").read_text().strip()
    bounds = ("--for", "staging", "--kind", "graph")
    assert alone.run("key", "trust", made.stdout.strip(), *bounds, environment=named).status == 0
    assert alone.run("key", "rotate", "ci", str(new), "--until", "2027-01-31", environment=named).status == 0
    old, fresh = TrustList.load(file).keys
    assert (old.name, old.not_after, old.projects, old.kinds) == (
        "ci",
        "2027-01-31T00:00:00Z",
        ("staging",),
        (Kind.GRAPH,),
    )
    assert (fresh.public, fresh.projects, fresh.kinds) == (PrivateKey.load(new).public, old.projects, old.kinds)
    assert alone.run("key", "revoke", "ci", environment=named).status == 0
    for words in (("untrust", "ci"), ("trust", str(alone.folder / "ci.pub"))):
        refused = alone.run("key", *words, environment=named)
        assert refused.status == 2
        assert "was revoked" in refused.stderr
    assert alone.run("key", "untrust", "ci-2", environment=named).status == 0
    listed = alone.run("key", "list", "--json", environment=named).json
    assert [(each["name"], bool(each["revoked"])) for each in listed] == [("ci", True)]


def test_what_a_person_wrote_beside_the_keys_stays(alone: CommandLine) -> None:
    file = write_list(alone.folder / "trusted", line(PrivateKey.generate()))
    file.write_text(f"# ask the build team\n{file.read_text()}")
    assert alone.run("key", "retire", "ci", "--trusted-keys", str(file)).status == 0
    text = file.read_text()
    assert text.startswith("# ask the build team\n")
    assert "not-after=" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("generate", "{folder}/there"), "there already"),
        (("show", "{folder}/absent"), "No such file"),
        (("trust", "{folder}/absent", "--trusted-keys", "{folder}/list"), "neither a public line"),
        (("trust", "ed25519 AAAA x", "--trusted-keys", "{folder}/list"), "no public key"),
        (("list",), "NEURON_CACHE_TRUSTED_KEYS"),
        (("list", "--trusted-keys", "{folder}/absent"), "No such file"),
        (("revoke", "nobody", "--trusted-keys", "{folder}/empty"), "no key in the list"),
        (("retire", "ci", "--after", "soon", "--trusted-keys", "{folder}/empty"), "is no time"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_changes_nothing(
    alone: CommandLine, words: tuple[str, ...], said: str
) -> None:
    (alone.folder / "there").write_text("something else")
    (alone.folder / "empty").write_text("")
    ran = alone.run("key", *(word.format(folder=alone.folder) for word in words))
    assert ran.status == 2, ran
    assert said in ran.stderr
    assert len(ran.stderr.strip().splitlines()) == 1
    assert (alone.folder / "there").read_text() == "something else"
    assert (alone.folder / "empty").read_text() == ""
    assert not (alone.folder / "list").exists()


def test_people_see_who_signed_an_entry_and_whether_that_counts(shared: CommandLine) -> None:
    key, built = PrivateKey.generate(), compiled()
    entry = publish(shared, signed(key, built=built, project=shared.project), built)
    name = f"graph/{entry.key}"
    assert "not checked: NEURON_CACHE_TRUSTED_KEYS" in shared.run("show", name).stdout
    trusted = {"NEURON_CACHE_TRUSTED_KEYS": str(write_list(shared.folder / "t", line(key, "builder")))}
    assert "trusted as builder" in shared.run("show", name, environment=trusted).stdout
    empty = {"NEURON_CACHE_TRUSTED_KEYS": str(write_list(shared.folder / "e"))}
    assert "which is not trusted" in shared.run("show", name, environment=empty).stdout


def test_only_what_is_vouched_for_is_pulled_onto_a_node(shared: CommandLine) -> None:
    key, entries = PrivateKey.generate(), []
    for name, signer in (("good", key), ("bad", PrivateKey.generate())):
        built = compiled()
        entries.append(publish(shared, signed(signer, document(name), built, shared.project), built))
    plan = shared.plan(*entries)
    strict = {
        "NEURON_CACHE_TRUSTED_KEYS": str(write_list(shared.folder / "t", line(key))),
        "NEURON_CACHE_SIGNATURES": "require",
    }
    ran = shared.run("pull", plan, "--json", environment=strict)
    assert ran.status == 1, ran
    assert (ran.json["pulled"], [each["key"] for each in ran.json["refused"]]) == (1, [document("bad").key])
    assert len(list(shared.node_dir.rglob("model.neff"))) == 1
    assert shared.tier.get(Kind.GRAPH, document("good").key) is not None
    for name, status in (("good", 0), ("bad", 1)):
        file = shared.folder / name
        ran = shared.run("get", f"graph/{document(name).key}", "--to", str(file), environment=strict)
        assert (ran.status, file.exists()) == (status, status == 0), ran


def test_what_is_put_by_hand_is_signed_too(shared: CommandLine, tmp_path: Path) -> None:
    asked, built, key = document(), compiled(), PrivateKey.generate()
    (tmp_path / "document").write_text(json.dumps(asked.to_json()))
    (tmp_path / "neff").write_bytes(built.neff)
    ran = shared.run(
        "put",
        str(tmp_path / "document"),
        str(tmp_path / "neff"),
        "--json",
        environment={"NEURON_CACHE_SIGNING_KEY": str(save(key, tmp_path / "key"))},
    )
    assert ran.status == 0, ran
    assert TrustList([line(key)]).check(Entry.from_json(ran.json["entry"])).name == "ci"
    stored = shared.run("show", f"graph/{asked.key}", "--json").json["entry"]
    assert stored["signature"] == ran.json["entry"]["signature"]


def test_doctor_says_whose_entries_are_believed_and_what_would_not_be(alone: CommandLine) -> None:
    key, stranger = PrivateKey.generate(), PrivateKey.generate()
    file = write_list(
        alone.folder / "t", line(key, not_after="2999-01-01"), line(stranger, "old", revoked="2026-01-01")
    )

    def found(**settings: str) -> list[tuple[str, str]]:
        environment = {f"NEURON_CACHE_{name}": value for name, value in settings.items()}
        lines = alone.run("doctor", "--json", environment=environment).json
        return [(each["state"], each["text"]) for each in lines if each["check"] == "signatures"]

    assert found() == [("ok", "signatures are not checked")]
    assert found(TRUSTED_KEYS=str(file)) == [("ok", "warn: 1 keys are trusted (ci), 1 are revoked")]
    good, bad = save(key, alone.folder / "good"), save(stranger, alone.folder / "bad")
    strict = {"TRUSTED_KEYS": str(file), "SIGNATURES": "require"}
    assert found(**strict, SIGNING_KEY=str(good))[-1] == ("ok", f"signs as {key.public.key_id}")
    assert found(**strict, SIGNING_KEY=str(bad))[-1][0] == "problem"
    assert found(**strict)[-1][0] == "note"
    assert [state for state, _ in found(SIGNATURES="require")] == ["problem", "note"]
    assert found(TRUSTED_KEYS=str(alone.folder / "absent"))[0][0] == "problem"
