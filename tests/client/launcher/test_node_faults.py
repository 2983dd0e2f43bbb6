"""The launcher over a node tier that is not as it should be: the caller's compile ends as it would without a cache."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import pytest

from tests.client.node.test_faults import FAULTS, spoil
from tests.support.silent import silent_file_system

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.launching import Host

pytestmark = pytest.mark.once

PLACES = [".", "v1", "v1/CACHEDIR.TAG", "v1/.compilers", "v1/default/cc", "v1/default/cc/locks", "ENTRY/entry.json"]


@pytest.mark.share(3)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_compile_through_a_spoilt_tier_ends_well(host: Host, place: str, fault: str) -> None:
    if fault == "another's" and os.geteuid() != 0:
        pytest.skip("only root can give files away")
    assert host.compile().returncode == 0
    tier = host.folder / "node"
    (entry,) = tier.glob("v1/default/cc/??/*")
    spoil(entry / "entry.json" if place.startswith("ENTRY") else tier / place, fault)
    for _ in range(2):
        (host.work / "out.neff").unlink(missing_ok=True)
        ran = host.compile()
        assert (ran.returncode, ran.stdout) in [(0, b"Compiler status PASS\n"), (0, b"")], ran.stderr
        assert (host.work / "out.neff").exists()
        assert ran.stderr.count(b"\n") <= 3, ran.stderr
    with contextlib.suppress(OSError):
        tier.chmod(0o700)


@pytest.mark.parametrize("setting", ["NODE_DIR", pytest.param("RECORD", marks=pytest.mark.soak)])
def test_a_tier_on_a_file_system_whose_server_is_gone_keeps_no_compile(
    host: Host, tmp_path: Path, setting: str
) -> None:
    with silent_file_system(tmp_path / "gone") as gone:
        environment = host.environment(**{f"NEURON_CACHE_{setting}": f"{gone}/file"})
        ran = host.compile(environment=environment)
    assert ran.returncode == 0, ran.stderr
    assert (host.work / "out.neff").exists()
    assert b"did not answer" in ran.stderr
    assert f"NEURON_CACHE_{setting}".encode() in ran.stderr
