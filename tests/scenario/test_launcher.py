"""Many jobs on two nodes start `neuronx-cc` at once: one compile for each module, the same bytes for everybody."""

from __future__ import annotations

import hashlib
import random
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.support.launching import WORDS, Host, module_text, new_host
from tests.support.servers import running_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LIMIT_SECONDS = 100
NICE = ("nice", "-n", "10")  # the server, elsewhere in life, must not starve beside so many jobs


@contextmanager
def shared_cache(sort: str, folder: Path) -> Iterator[dict[str, str]]:
    """Give the environment that leads to a shared cache."""
    if sort == "server":
        with running_server(folder / "server") as server:
            yield {"NEURON_CACHE_URL": server.url, "XDG_CONFIG_HOME": str(server.config)}
    else:
        (folder / "shared").mkdir()
        yield {"NEURON_CACHE_URL": str(folder / "shared")}


def run_process(host: Host, environment: dict[str, str], folder: Path, modules: int, seed: int) -> list[str]:
    """Compile all modules in an order of its own, as one process of a job, and return the digests by module.

    Half of the processes drain standard output before standard error through pipes of 4 KiB.
    """
    folder.mkdir(parents=True)
    order = list(range(modules))
    random.Random(seed).shuffle(order)  # noqa: S311 - an order that can be repeated
    digests = {}
    for number in order:
        source, output = folder / f"{number}.mlir", folder / f"{number}.neff"
        # every process traces for itself: other paths in the locations
        source.write_text(module_text(number).replace("\n  }", f' loc("{folder}/model.py":1:1)\n  }}'))
        words = ["compile", str(source), *WORDS, "--output", str(output)]
        small = {"pipesize": 4096} if seed % 2 else {}
        with host.start(words, environment, before=NICE, cwd=folder, **small) as process:
            try:
                assert process.stdout is not None
                assert process.stderr is not None
                if seed % 2:
                    process.stdout.read()
                    errors = process.stderr.read()
                    process.wait(timeout=LIMIT_SECONDS)
                else:
                    _, errors = process.communicate(timeout=LIMIT_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        assert process.returncode == 0, errors.decode()
        digests[number] = hashlib.sha256(output.read_bytes()).hexdigest()
        assert sorted(path.name for path in folder.glob(".*")) == []
    return [digests[number] for number in range(modules)]


def run_job(host: Host, cache: dict[str, str], folder: Path, processes: int, modules: int) -> list[list[str]]:
    """Run a job of so many processes on two nodes, which share nothing but the shared cache."""
    with ThreadPoolExecutor(processes) as pool:
        running = []
        for number in range(processes):
            node = f"node-{number % 2}"
            environment = host.environment(NEURON_CACHE_NODE_DIR=str(folder / node), **cache)
            running.append(pool.submit(run_process, host, environment, folder / f"job-{number}", modules, number))
        return [one.result() for one in running]


def check_job(sort: str, folder: Path, processes: int, modules: int) -> None:
    host = new_host(folder / "host")
    host.real.set_mode("chatty")
    with shared_cache(sort, folder) as cache:
        cold = run_job(host, cache, folder / "cold", processes, modules)
        assert len(set(map(tuple, cold))) == 1
        assert len(set(cold[0])) == modules
        assert host.compiles == modules
        warm = run_job(host, cache, folder / "warm", processes, modules)  # new nodes: all comes from the shared cache
        assert set(map(tuple, warm)) == {tuple(cold[0])}
        assert host.compiles == modules
    assert host.passed == []


def test_two_nodes_compile_each_module_once_and_the_next_job_none(tmp_path: Path) -> None:
    check_job("server", tmp_path, processes=8, modules=5)


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("sort", ["folder", "server"])
def test_sixty_four_processes_on_two_nodes_compile_forty_modules_once(sort: str, tmp_path: Path) -> None:
    check_job(sort, tmp_path, processes=64, modules=40)
