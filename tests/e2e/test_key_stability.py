"""A key is equal wherever one program is built, and differs whenever the compiled code may."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fakes.neuronx_cc import VERSION
from tests.fakes.programs import install_neuronx_cc

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).resolve().parents[2]
PROBE = (ROOT / "tests" / "e2e" / "probe.py").read_text()

pytestmark = pytest.mark.timeout(300)


def keys(folder: Path, *, lines: int = 0, **environment: str) -> list[str]:
    """Run the probe out of ``folder``, shifted down by ``lines``, and return the keys it found."""
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / f"model_{lines}.py"
    script.write_text("# a line more\n" * lines + PROBE)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NEURON_", "XLA_", "NKI_"))}
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=folder,
        env={**kept, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def of_rank(rank: int) -> dict[str, str]:
    """A training job's environment on a Neuron host, as it differs from rank to rank and node to node."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % 2),
        "HOSTNAME": f"ip-10-0-0-{rank}",
        "NEURON_RT_VISIBLE_CORES": f"{rank * 2}-{rank * 2 + 1}",
        "NEURON_RT_ROOT_COMM_ID": f"10.0.0.{rank}:63182",
        "NEURON_PJRT_PROCESS_INDEX": str(rank),
        "NEURON_COMPILE_CACHE_URL": f"/var/tmp/cache-{rank}",
        "NEURON_CACHE_LABEL": f"job-{rank}",
        "NEURON_FRAMEWORK_DEBUG_DIR": f"/tmp/debug-{rank}",
        "XLA_HLO_DEBUG": str(rank % 2),
        "XLA_FLAGS": f"--xla_dump_to=/tmp/dump-{rank}",
        "TMPDIR_LABEL": str(rank),
    }


@pytest.fixture(scope="module")
def first(tmp_path_factory) -> list[str]:
    return keys(tmp_path_factory.mktemp("first"), PYTHONHASHSEED="0")


def test_ranks_hosts_folders_and_edits_elsewhere_share_every_key(first, tmp_path):
    assert len(first) == len(set(first)) == 6
    others = [
        keys(tmp_path / "a", PYTHONHASHSEED="1", **of_rank(0)),
        keys(tmp_path / "b" / "c", PYTHONHASHSEED="12345", **of_rank(1)),
        keys(tmp_path / "d", lines=38, PYTHONHASHSEED="5", **of_rank(2)),
        keys(tmp_path / "e", PROBE_SEED="7", PYTHONHASHSEED="random", **of_rank(3)),
        keys(tmp_path / "f", lines=1, PROBE_SEED="8", PYTHONOPTIMIZE="1", LANG="C"),
    ]
    for other in others:
        assert other == first


@pytest.mark.parametrize(
    ("change", "unchanged"),
    [
        ({"PROBE_DTYPE": "float64"}, 0),
        ({"PROBE_WIDTH": "24"}, 0),
        ({"PROBE_CONSTANT": "0.25"}, 3),  # tanh, cumsum and tan hold no constant
        ({"XLA_FLAGS": "--xla_cpu_enable_fast_min_max=true"}, 0),
        ({"NEURON_BACKEND_CPU_THREADS": "2"}, 0),
    ],
    ids=["dtype", "shape", "constant", "flag", "threads"],
)
def test_other_code_never_shares_a_key(first, tmp_path, change: Mapping[str, str], unchanged):
    other = keys(tmp_path, **change)
    assert len(other) == len(first)
    assert len(set(other) & set(first)) == unchanged


@pytest.fixture
def neuronx_cc(tmp_path) -> dict[str, str]:
    """Environment of a host with the (test's own) vendor compiler."""
    compiler = install_neuronx_cc(tmp_path / "bin")
    return {
        "PATH": f"{compiler.directory}:{os.environ['PATH']}",
        "NEURON_BACKEND_COMPILER": "neuronx-cc",
        "NEURON_PLATFORM_TARGET_OVERRIDE": "trn2",
    }


def test_compiler_target_cores_and_flags_each_make_another_key(neuronx_cc, tmp_path):
    base = keys(tmp_path / "base", **neuronx_cc)
    changes = {
        "target": {"NEURON_PLATFORM_TARGET_OVERRIDE": "trn1"},
        "cores": {"NEURON_LOGICAL_NC_CONFIG": "1"},
        "flags": {"NEURON_CC_FLAGS": "--model-type transformer"},
        "order": {"NEURON_CC_FLAGS": "--auto-cast=none --model-type transformer"},
        "order2": {"NEURON_CC_FLAGS": "--model-type transformer --auto-cast=none"},
    }
    found = {name: keys(tmp_path / name, **{**neuronx_cc, **change}) for name, change in changes.items()}
    newer = install_neuronx_cc(tmp_path / "newer")
    newer.program.write_text(newer.program.read_text().replace(VERSION, "2.28.1.0+0badcafe"))
    found["version"] = keys(tmp_path / "version", **{**neuronx_cc, "NEURON_CACHE_COMPILER": str(newer.program)})
    all_keys = [key for group in (base, *found.values()) for key in group]
    assert len(set(all_keys)) == len(all_keys)
    logging = {"NEURON_CC_FLAGS": "--verbose 35 --logfile=x.txt --cache_dir=/c"}
    assert keys(tmp_path / "log", **{**neuronx_cc, **logging}) == base
