"""Compilers that fail in each way they are known to: what the cluster keeps of it, and what each rank sees.

``pytest -s`` prints the table.
"""

from __future__ import annotations

import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from client import failures, processes
from client.artifact import Compiled
from client.cache import Cache
from client.errors import CompileError
from client.settings import Settings
from tests.client.programs import document
from tests.fakes.programs import FakeCompiler, install_neuronx_cc
from tests.support.launching import WORDS, module_text, new_host

RANKS = 3
LIMIT_SECONDS = 90
PROGRAMS = 64


class Expected(NamedTuple):
    """What a way to fail leads to: exit status of every rank, compiler runs (least, most), words in every rank's log.

    Ranks that come while a compile is under way share its end; one that comes after it may run the compiler again.
    """

    status: int
    runs: tuple[int, int]
    says: str
    entries: int = 0


DIAGNOSIS, MEMORY = "NCC_ESFH002", "[F137]"
ENDS_WELL = "ended with exit status 0"
EXPECTED = {
    "ok": Expected(0, (1, 1), "", entries=1),
    "fails-once": Expected(0, (2, 2), "", entries=1),
    "diagnosis": Expected(70, (1, 1), DIAGNOSIS),
    "memory": Expected(70, (2, 2 * RANKS), MEMORY),
    "no-file": Expected(70, (2, 2 * RANKS), ENDS_WELL),
    "empty": Expected(70, (2, 2 * RANKS), ENDS_WELL),
    "short": Expected(70, (2, 2 * RANKS), ENDS_WELL),
    # another format is the caller's business: each rank has its own compiler's bytes, and nothing is kept of them
    "random": Expected(0, (1, RANKS), "not shared"),
    "slow": Expected(70, (1, RANKS), "NEURON_CACHE_COMPILE_LIMIT"),
}


FEW = ("fails-once", "diagnosis", "no-file", "slow")
"""The others go the same ways through the code; `make soak` runs them all."""


@pytest.mark.parametrize(
    "mode", [mode if mode in FEW else pytest.param(mode, marks=pytest.mark.soak) for mode in EXPECTED]
)
@pytest.mark.share(2)
def test_each_way_to_fail_leaves_nothing_behind_and_tells_every_rank_why(mode: str, tmp_path: Path) -> None:
    expected = EXPECTED[mode]
    host = new_host(tmp_path / "host")
    host.real.set_mode(mode)
    shared = tmp_path / "shared"
    shared.mkdir()
    limit = {"NEURON_CACHE_COMPILE_LIMIT": "2"} if mode == "slow" else {}

    def rank(number: int) -> tuple[int, str, bytes]:
        work = tmp_path / f"rank-{number}"
        work.mkdir()
        (work / "in.mlir").write_text(module_text())
        environment = host.environment(str(shared), RANK=str(number), **limit)
        words = ["compile", "in.mlir", *WORDS, "--output", "out.neff"]
        with host.start(words, environment, cwd=work) as process:
            try:
                _, errors = process.communicate(timeout=LIMIT_SECONDS)
            finally:
                process.kill()
        output = work / "out.neff"
        return process.returncode, errors.decode(), output.read_bytes() if output.exists() else b""

    with ThreadPoolExecutor(RANKS) as pool:
        ended = list(pool.map(rank, range(RANKS)))

    statuses = [status for status, _, _ in ended]
    kept = [*shared.rglob("entry.json"), *(host.folder / "node").rglob("entry.json")]
    sys.stdout.write(
        f"\n{mode:10} runs {host.compiles}, ranks ended with {statuses}, entries kept {len(kept)}: "
        f"{ended[0][1].strip().splitlines()[-1][:110] if ended[0][1].strip() else 'nothing said'}\n"
    )
    least, most = expected.runs
    assert least <= host.compiles <= most
    assert all(expected.says in errors for _, errors, _ in ended)
    assert len(kept) == 2 * expected.entries  # one on the node, one in the shared folder
    assert set(statuses) == {expected.status} if expected.status == 0 else 0 not in statuses
    if expected.entries:
        assert len({output for _, _, output in ended}) == 1
    assert all(bool(output) == (status == 0) for status, _, output in ended)


@pytest.mark.soak
def test_a_compiler_that_fails_once_in_64_runs_costs_one_run_and_no_rank(tmp_path: Path) -> None:
    """64 programs, 4 ranks on one node: one run ends with status 70, is made good, and all ranks run the same bytes."""
    fake = install_neuronx_cc(tmp_path / "real")
    fake.set_mode("one-in-64")

    def rank(number: int) -> list[bytes]:
        cache = Cache(Settings(node_dir=tmp_path / "node", rank=number))
        try:
            return [
                cache.get_or_compile(document(f"program {index}"), lambda: _run(fake, tmp_path)).neff
                for index in range(PROGRAMS)
            ]
        finally:
            cache.close()

    with ThreadPoolExecutor(4) as pool:
        ranks = list(pool.map(rank, range(4)))
    sys.stdout.write(f"\n{PROGRAMS} programs, 4 ranks: {len(fake.calls)} runs, one of them failed\n")
    assert all(mine == ranks[0] for mine in ranks)
    assert len(set(ranks[0])) == PROGRAMS
    assert len(fake.calls) == PROGRAMS + 1


def _run(fake: FakeCompiler, folder: Path) -> Compiled:
    """Run the compiler as our backends do."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        root = Path(name)
        (root / "in.mlir").write_text(module_text())
        output, log = root / "out.neff", root / "log"
        ended = processes.run(
            [str(fake.program), "compile", str(root / "in.mlir"), *WORDS, "--output", str(output)],
            environ={"PATH": "/usr/bin:/bin"},
            directory=root,
            log=log,
            seconds=60,
        )
        said = failures.read_tail(log)
        if ended.returncode != 0:
            assert ended.returncode is not None
            raise CompileError(failures.failure_of(ended.returncode, said))
        return Compiled({"model.neff": failures.read_neff(output, said, "the module", ["neuronx-cc"])}, ended.seconds)
