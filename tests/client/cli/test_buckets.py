"""Plans and bundles over a bucket with no server, on a real S3 store."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from client.layout import entry_folder
from client.s3.bucket import Bucket
from client.s3.url import BucketUrl
from tests.client.cli.conftest import CommandLine
from tests.client.programs import compiled, document
from tests.support.s3 import seaweedfs, use_credentials

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """A machine whose shared cache is a bucket."""
    store = seaweedfs()
    use_credentials(monkeypatch)
    return CommandLine(tmp_path, store.new_url(), tmp_path / "config")


def test_a_plan_is_pulled_from_a_bucket_and_what_it_lacks_is_named(bucket: CommandLine) -> None:
    programs = {name: compiled(size=size) for name, size in (("a", 10), ("b", 5000), ("c", 200_000))}
    entries = [bucket.share(document(name), program) for name, program in programs.items()]
    lost = replace(entries[0], key=document("never made").key)
    ran = bucket.run("pull", bucket.plan(*entries, lost), "--json")
    assert ran.status == 1
    assert (ran.json["pulled"], ran.json["present"]) == (3, 0)
    assert [missing["key"] for missing in ran.json["missing"]] == [lost.key]
    for entry, program in zip(entries, programs.values(), strict=True):
        stored = bucket.tier.get(entry.kind, entry.key)
        assert stored is not None
        assert stored.neff == program.neff
    assert bucket.run("pull", bucket.plan(*entries), "--json").json["present"] == 3


def test_the_gate_passes_a_bucket_that_holds_all_and_no_other(bucket: CommandLine) -> None:
    entries = [bucket.share(document(name)) for name in "ab"]
    plan = bucket.plan(*entries)
    assert bucket.run("check", plan).status == 0
    main = entries[1].output()
    assert main is not None
    assert bucket.url is not None
    store = Bucket(BucketUrl.parse(bucket.url))
    store.remove(f"{entry_folder('default', entries[1].kind, entries[1].key)}/{main.sha256}")
    store.close()
    ran = bucket.run("check", plan, "--json")
    assert ran.status == 1
    assert [missing["key"] for missing in ran.json["missing"]] == [entries[1].key]


def test_a_bucket_that_cannot_be_asked_is_never_an_empty_one(
    bucket: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = bucket.plan(bucket.share(document()))
    use_credentials(monkeypatch, secret="another-secret")
    for command in ("check", "pull"):
        ran = bucket.run(command, plan)
        assert ran.status == 2
        assert "another-secret" not in ran.stdout + ran.stderr


def test_a_bundle_goes_from_one_bucket_into_another_with_all_outputs(bucket: CommandLine) -> None:
    entries = [bucket.share(document(name)) for name in "ab"]
    bundle = bucket.folder / "plan.bundle"
    plan = bucket.plan(*entries)
    assert bucket.run("bundle", "export", plan, str(bundle)).status == 0
    assert bucket.run("bundle", "verify", str(bundle)).status == 0
    there = replace(bucket, url=seaweedfs().new_url())
    assert there.run("check", plan).status == 1
    ran = there.run("bundle", "import", str(bundle), "--to", "shared", "--json")
    assert (ran.status, ran.json["stored"]) == (0, 2)
    assert there.run("check", plan).status == 0
    log = bucket.folder / "log"
    assert there.run("get", entries[0].key, "--output", "compile.log", "--to", str(log)).status == 0
    assert log.read_bytes() == b"all is well\n"
