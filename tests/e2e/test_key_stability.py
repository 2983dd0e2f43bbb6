"""A key is equal wherever one program is built, and differs whenever the compiled code may."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fakes.neuronx_cc import VERSION
from tests.fakes.programs import install_neuronx_cc

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).resolve().parents[2]
PROBE = (ROOT / "tests" / "e2e" / "probe.py").read_text()

pytestmark = pytest.mark.timeout(300)


def run_probe(
    folder: Path, environment: Mapping[str, str], *, lines: int = 0, variants: Sequence[Mapping[str, str]] = ({},)
) -> list[list[str]]:
    """Run the probe out of ``folder``, shifted down by ``lines``, and return the keys under each of ``variants``."""
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / f"model_{lines}.py"
    script.write_text("# a line more\n" * lines + PROBE)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NEURON_", "XLA_", "NKI_"))}
    own = {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder), "PROBE_VARIANTS": json.dumps(variants)}
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=folder,
        env={**kept, **own, **environment},
        capture_output=True,
        text=True,
        timeout=240,
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
        "NEURON_COMPILE_CACHE_URL": f"s3://bucket/cache-{rank}",
        "NEURON_CACHE_LABEL": f"job-{rank}",
        "NEURON_FRAMEWORK_DEBUG_DIR": f"debug-{rank}",
        "XLA_HLO_DEBUG": str(rank % 2),
        "XLA_FLAGS": f"--xla_dump_to=dump-{rank}",
        "TMPDIR_LABEL": str(rank),
    }


CHANGES = {
    "dtype": {"PROBE_DTYPE": "float64"},
    "shape": {"PROBE_WIDTH": "24"},
    "constant": {"PROBE_CONSTANT": "0.25"},
    "flag": {"XLA_FLAGS": "--xla_cpu_enable_fast_min_max=true"},
    "threads": {"NEURON_BACKEND_CPU_THREADS": "2"},
}
NEURON_CHANGES = (
    {"NEURON_PLATFORM_TARGET_OVERRIDE": "trn1"},
    {"NEURON_LOGICAL_NC_CONFIG": "1"},
    {"NEURON_CC_FLAGS": "--model-type transformer"},
    {"NEURON_CC_FLAGS": "--auto-cast=none --model-type transformer"},
    {"NEURON_CC_FLAGS": "--model-type transformer --auto-cast=none"},
)


@dataclass(frozen=True)
class Probed:
    """The keys that one process found: as it was started, after each of `CHANGES`, and with neuronx-cc.

    ``neuron`` is with its settings, with words added that change no compile, after each of `NEURON_CHANGES`, and with
    another build of the compiler.
    """

    base: list[str]
    changed: list[list[str]]
    neuron: list[list[str]]


@pytest.fixture(scope="module")
def probed(tmp_path_factory) -> Probed:
    folder = tmp_path_factory.mktemp("first")
    program = install_neuronx_cc(folder / "bin").program
    newer = install_neuronx_cc(folder / "newer").program
    newer.write_text(newer.read_text().replace(VERSION, "2.28.1.0+0badcafe"))
    host = {
        "NEURON_CACHE_COMPILER": str(program),
        "NEURON_BACKEND_COMPILER": "neuronx-cc",
        "NEURON_PLATFORM_TARGET_OVERRIDE": "trn2",
    }
    words = {"NEURON_CC_FLAGS": "--verbose 35 --logfile=x.txt --cache_dir=/c"}
    neuron = [{**host, **change} for change in ({}, words, *NEURON_CHANGES, {"NEURON_CACHE_COMPILER": str(newer)})]
    base, *others = run_probe(folder, {"PYTHONHASHSEED": "0"}, variants=[{}, *CHANGES.values(), *neuron])
    return Probed(base, others[: len(CHANGES)], others[len(CHANGES) :])


@pytest.mark.parametrize("processes", [2, pytest.param(6, marks=pytest.mark.soak)])
def test_ranks_hosts_folders_and_edits_elsewhere_share_every_key(probed, tmp_path, processes):
    settings = [
        ("e", 38, {"PYTHONHASHSEED": "random", "PROBE_SEED": "7", **of_rank(3)}),
        ("a", 0, {"PYTHONHASHSEED": "1", **of_rank(0)}),
        ("b/c", 0, {"PYTHONHASHSEED": "12345", **of_rank(1)}),
        ("d", 7, {"PYTHONHASHSEED": "5", **of_rank(2)}),
        ("f", 1, {"PROBE_SEED": "8", "PYTHONOPTIMIZE": "1", "LANG": "C"}),
    ]
    with ThreadPoolExecutor(2) as pool:
        others = pool.map(lambda one: run_probe(tmp_path / one[0], one[2], lines=one[1]), settings[: processes - 1])
        for (keys,) in others:
            assert keys == probed.base
    assert len(probed.base) == len(set(probed.base)) == 6


def test_other_code_never_shares_a_key(probed):
    shared = {name: len(set(other) & set(probed.base)) for name, other in zip(CHANGES, probed.changed, strict=True)}
    assert shared == {
        "dtype": 0,
        "shape": 0,
        "constant": 3,  # tanh, cumsum and tan hold no constant
        "flag": 0,
        "threads": 0,
    }


def test_compiler_target_cores_and_flags_each_make_another_key(probed):
    base, same, *others = probed.neuron
    assert same == base
    assert len(others) == len(NEURON_CHANGES) + 1
    every = [key for group in (base, *others, probed.base) for key in group]
    assert len(set(every)) == len(every)
