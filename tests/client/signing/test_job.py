"""What a job does about signatures, over real node tiers and a shared cache in memory."""

from __future__ import annotations

import json
import logging
import os
import stat
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from client.cache import Cache
from client.errors import CacheMissError, SignatureError
from client.settings import Settings
from client.signing.keys import PrivateKey
from client.signing.trust import TrustList
from tests.client.programs import compiled, document, entry_of
from tests.client.signing.signers import line, save, signed, write_list

if TYPE_CHECKING:
    from pathlib import Path

    from client.artifact import Compiled
    from client.wire import Entry
    from tests.client.shared_store import SharedStore

OURS, THEIRS = PrivateKey.generate(), PrivateKey.generate()


@pytest.fixture
def trusted(tmp_path: Path) -> Path:
    return write_list(tmp_path / "trusted", line(OURS))


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return save(OURS, tmp_path / "key")


def put(store: SharedStore, entry: Entry, built: Compiled) -> None:
    store.publish(entry, built.outputs, None)


def forbidden() -> Compiled:
    pytest.fail("the compiler was started")


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def spoilt(how: str) -> tuple[Entry, Compiled]:
    built = compiled()
    entry = entry_of(document(), built.outputs)
    match how:
        case "unsigned":
            return entry, built
        case "unknown_key":
            return signed(THEIRS, built=built), built
        case "wrong":
            return replace(signed(OURS), outputs=entry.outputs), built
    raise AssertionError(how)


@pytest.mark.parametrize("how", ["unsigned", "unknown_key", "wrong"])
def test_what_nobody_vouches_for_is_compiled_and_kept_nowhere(make_cache, store, trusted, key, caplog, how):
    entry, built = spoilt(how)
    put(store, entry, built)
    cache = make_cache(store, trusted_keys=trusted, signing_key=key, signatures="require")
    made = cache.get_or_compile(document(), compiled)
    assert made.source == "compile"
    assert made.neff != built.neff
    assert cache.get_or_compile(document(), forbidden).neff == made.neff
    # the node tier has ours, which the next process believes
    found = make_cache(store, trusted_keys=trusted, signatures="require", mode="ro").get_or_compile(
        document(), forbidden
    )
    assert (found.source, found.neff) == ("disk", made.neff)
    assert store.entries["graph", entry.key] == entry
    said = warnings(caplog)
    assert len([text for text in said if "is not used" in text]) == 1, said
    assert cache.statistics.errors >= 1


def test_what_a_job_signs_another_one_believes(make_cache, store, trusted, key, caplog):
    made = make_cache(store, trusted_keys=trusted, signing_key=key, signatures="require", node="one").get_or_compile(
        document(), compiled
    )
    found = make_cache(store, trusted_keys=trusted, signatures="require", mode="ro", node="two").get_or_compile(
        document(), forbidden
    )
    assert (found.source, found.neff) == ("remote", made.neff)
    assert TrustList([line(OURS)]).check(store.entries["graph", made.key]).name == "ci"
    assert warnings(caplog) == []


def test_without_require_the_program_is_used_with_one_warning(make_cache, store, trusted, caplog):
    for name in ("a", "b"):
        built = compiled()
        put(store, entry_of(document(name), built.outputs), built)
    cache = make_cache(store, trusted_keys=trusted)
    assert [cache.get_or_compile(document(name), forbidden).source for name in ("a", "b")] == ["remote", "remote"]
    said = warnings(caplog)
    assert len(said) == 1
    assert "is used although it is not signed" in said[0]


def test_an_unsigned_entry_on_disk_gives_way_to_one_that_is_signed(make_cache, trusted, key):
    old = make_cache(None).get_or_compile(document(), compiled)
    cache = make_cache(None, trusted_keys=trusted, signing_key=key, signatures="require")
    made = cache.get_or_compile(document(), compiled)
    assert made.neff != old.neff
    assert make_cache(None).get_or_compile(document(), forbidden).neff == made.neff


def test_a_job_that_cannot_sign_neither_publishes_nor_takes_a_key_from_those_who_can(
    make_cache, store, trusted, tmp_path, caplog
):
    cache = make_cache(store, trusted_keys=trusted, signatures="require")
    cache.get_or_compile(document(), compiled)
    assert store.entries == {}
    assert [text for text in warnings(caplog) if "NEURON_CACHE_SIGNING_KEY" in text] == warnings(caplog)
    caplog.clear()
    other = make_cache(store, trusted_keys=trusted, signing_key=save(THEIRS, tmp_path / "k"), signatures="require")
    other.get_or_compile(document(), compiled)
    assert store.entries == {}
    assert "may not sign" in warnings(caplog)[0]


def test_a_signing_key_that_cannot_be_used_publishes_nothing_unsigned(make_cache, store, tmp_path, caplog):
    cache = make_cache(store, signing_key=tmp_path / "absent")
    assert cache.get_or_compile(document(), compiled).source == "compile"
    assert store.entries == {}
    assert "nothing is published: the signing key" in warnings(caplog)[0]


@pytest.mark.parametrize("content", [None, "", "nonsense\n", "ed25519 AAAA x\n"])
def test_a_list_that_cannot_be_read_trusts_nobody(make_cache, store, tmp_path, caplog, content):
    path = tmp_path / "list"
    if content is not None:
        path.write_text(content)
    built = compiled()
    put(store, signed(OURS, built=built), built)
    made = make_cache(store, trusted_keys=path, signatures="require", mode="ro").get_or_compile(document(), compiled)
    assert made.source == "compile"
    assert any("nobody is trusted" in text or "not trusted" in text for text in warnings(caplog))


def test_require_without_a_list_trusts_nobody(make_cache, store, caplog):
    built = compiled()
    put(store, signed(OURS, built=built), built)
    assert make_cache(store, signatures="require", mode="ro").get_or_compile(document(), compiled).source == "compile"
    assert "without NEURON_CACHE_TRUSTED_KEYS" in warnings(caplog)[0]


def test_a_key_that_is_revoked_while_a_job_runs_is_not_believed_from_then_on(make_cache, store, trusted):
    for name in ("a", "b"):
        built = compiled()
        put(store, signed(OURS, document(name), built), built)
    cache = make_cache(store, trusted_keys=trusted, signatures="require", mode="ro")
    assert cache.get_or_compile(document("a"), forbidden).source == "remote"
    fresh = trusted.with_name("new")
    write_list(fresh, line(OURS, revoked="2026-11-30")).replace(trusted)
    assert cache.get_or_compile(document("b"), compiled).source == "compile"


def test_must_hit_and_unsigned_is_a_miss_and_on_error_fail_says_why(make_cache, store, trusted):
    built = compiled()
    put(store, entry_of(document(), built.outputs), built)
    strict = {"trusted_keys": trusted, "signatures": "require", "mode": "ro"}
    with pytest.raises(CacheMissError):
        make_cache(store, on_miss="fail", **strict).get_or_compile(document(), forbidden)
    with pytest.raises(SignatureError, match="not signed"):
        make_cache(store, on_error="fail", **strict).get_or_compile(document(), forbidden)


@pytest.fixture
def open_tier(tmp_path: Path) -> Path:
    """A tier that every user may write to."""
    folder = tmp_path / "node"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def test_a_tier_that_anybody_can_write_serves_signed_entries_alone(make_cache, open_tier, trusted, key, caplog):
    refused = make_cache(None)
    refused.get_or_compile(document(), compiled)
    assert "no node tier" in warnings(caplog)[0]
    assert not any(open_tier.iterdir())
    caplog.clear()
    options: dict[str, Any] = {"trusted_keys": trusted, "signatures": "require"}
    made = make_cache(None, signing_key=key, **options).get_or_compile(document(), compiled)
    found = make_cache(None, mode="ro", **options).get_or_compile(document(), forbidden)
    assert (found.source, found.neff) == ("disk", made.neff)
    assert warnings(caplog) == []
    program = next(open_tier.rglob("model.neff"))
    assert stat.S_IMODE((open_tier / "v1").stat().st_mode) == 0o1777
    # another user puts his own program there, with entry and digest to match
    built = compiled()
    forged = entry_of(document(), built.outputs)
    program.write_bytes(built.neff)
    program.with_name("entry.json").write_text(json.dumps(forged.to_json()))
    again = make_cache(None, signing_key=key, **options).get_or_compile(document(), compiled)
    assert again.source == "compile"
    assert "it is not signed" in warnings(caplog)[0]


def test_a_repeated_look_up_does_not_verify_again(make_cache, store, trusted, key, monkeypatch):
    cache = make_cache(store, trusted_keys=trusted, signing_key=key, signatures="require")
    cache.get_or_compile(document(), compiled)
    calls: list[object] = []
    check = TrustList.check
    monkeypatch.setattr(TrustList, "check", lambda self, entry: calls.append(entry) or check(self, entry))
    node = cache._mine().node
    assert node is not None
    for _ in range(5):
        assert node.get(document().kind, document().key) is not None
    assert len(calls) <= 1


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({}, True),
        ({"NEURON_CACHE_SIGNATURES": "off"}, False),
        ({"RANK": "3"}, False),
        ({"RANK": "0"}, True),
        ({"NEURON_CACHE_URL": "http://127.0.0.1:1"}, False),
    ],
)
def test_one_notice_says_that_programs_are_not_authenticated(tmp_path, caplog, more, told):
    environ = {
        "HOME": str(tmp_path),
        "NEURON_CACHE_NODE_DIR": str(tmp_path / "node"),
        "NEURON_CACHE_URL": "http://cache.invalid:8080",
        "NEURON_CACHE_TOKEN": "t",
        **more,
    }
    Cache.from_environment(environ).close()
    assert [text for text in warnings(caplog) if "not authenticated" in text] == warnings(caplog)[: int(told)]
    assert bool(warnings(caplog)) is told


def test_settings_name_files_and_the_strictest_reading_stands_for_nonsense(tmp_path, caplog):
    settings = Settings.from_environment(
        {
            "HOME": os.environ.get("HOME", "/root"),
            "NEURON_CACHE_SIGNING_KEY": str(tmp_path / "key"),
            "NEURON_CACHE_TRUSTED_KEYS": str(tmp_path / "trusted"),
            "NEURON_CACHE_SIGNATURES": "reqiure",
        }
    )
    assert settings.signature_mode == "require"
    assert "NEURON_CACHE_SIGNATURES" in settings.problems[0]
    assert settings.signing_key == tmp_path / "key"
    assert replace(settings, signatures=None).signature_mode == "warn"
