"""The main job in one command: a cold job fills a cache server, a second job on "another node" compiles nothing.

Starts a server of its own on a free port, runs each training example with two processes on one node tier, then again
with an empty node tier, and prints what every job did. Everything lies in one temporary folder and is gone afterwards.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from client.cli.output import print_table

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).resolve().parent
EXAMPLES = ("train_digits", "train_gpt")
RANKS = 2
STEPS = 50
LIMIT_SECONDS = 600
COUNTS = ("lookups", "memory", "disk", "remote", "compiles")
SECONDS = ("compile_seconds", "saved_seconds")


@dataclass(frozen=True)
class Job:
    """What one job did: its summary (all ranks together), its losses, and its wall time in seconds."""

    name: str
    node: str
    summary: dict[str, Any]
    losses: list[float]
    seconds: float


@contextmanager
def cache_server(folder: Path, environment: dict[str, str]) -> Iterator[str]:
    """Run ``neff-cache serve`` and yield its address."""
    command = [sys.executable, "-m", "client.cli", "serve", "--port", "0", "--data-dir", str(folder / "server")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            address = next((word for word in line.split() if word.startswith("http://")), None)
            if address is None:
                raise SystemExit(f"the cache server did not start: {line!r}")
            yield address
        finally:
            server.terminate()
            server.wait(timeout=30)


def run_job(name: str, example: str, node: str, folder: Path, environment: dict[str, str]) -> Job:
    """Run ``example`` in `RANKS` processes at once on the node tier called ``node``."""
    summary = folder / f"{name}.json"
    began = time.monotonic()
    ranks = [
        subprocess.Popen(
            [sys.executable, str(HERE / f"{example}.py"), "--device", "neuron", "--steps", str(STEPS), "--json"],
            stdout=subprocess.PIPE,
            text=True,
            env={
                **environment,
                "RANK": str(rank),
                "WORLD_SIZE": str(RANKS),
                "NEURON_CACHE_NODE_DIR": str(folder / node),
                "NEURON_CACHE_SUMMARY": str(summary),
                "NEURON_CACHE_LABEL": example,
            },
        )
        for rank in range(RANKS)
    ]
    outputs = []
    try:
        for rank, process in enumerate(ranks):
            output, _ = process.communicate(timeout=LIMIT_SECONDS)
            if process.returncode:
                raise SystemExit(f"{name}: rank {rank} ended with status {process.returncode}")
            outputs.append(json.loads(output.splitlines()[-1])["losses"])
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    if any(losses != outputs[0] for losses in outputs):
        raise SystemExit(f"{name}: the ranks computed different losses")
    return Job(name, node, json.loads(summary.read_text()), outputs[0], time.monotonic() - began)


def show(jobs: list[Job]) -> None:
    """Print what every job did, a row each: in 80 columns, because that is what terminals have."""
    print(f"Two jobs of {RANKS} ranks, each on two nodes; hits by tier, times in seconds:")
    print_table(
        ("job", "look-ups", "memory", "disk", "remote", "compiles", "compile", "saved", "wall", "loss"),
        (
            (
                job.name,
                *(str(job.summary["hits"].get(name, job.summary.get(name))) for name in COUNTS),
                *(f"{seconds:.1f}" for seconds in (*(job.summary[name] for name in SECONDS), job.seconds)),
                f"{job.losses[-1]:.6f}",
            )
            for job in jobs
        ),
    )


def main() -> None:
    """Run the demonstration; exit status 1 if the second job compiled anything or computed anything else."""
    with tempfile.TemporaryDirectory(prefix="neff-cache-demo-") as temporary:
        folder = Path(temporary)
        environment = {
            "NEFF_CACHE_LOG_LEVEL": "error",
            **{key: value for key, value in os.environ.items() if not key.startswith("NEURON_CACHE_")},
            "XDG_CONFIG_HOME": str(folder / "config"),
        }
        jobs: list[Job] = []
        with cache_server(folder, environment) as address:
            environment["NEURON_CACHE_URL"] = address
            for job, node in (("cold", "node-a"), ("second", "node-b")):
                jobs += [
                    run_job(f"{job} {name.removeprefix('train_')}", name, node, folder, environment)
                    for name in EXAMPLES
                ]
        show(jobs)
        for cold, second in zip(jobs[:2], jobs[2:], strict=True):
            if second.summary["compiles"] or second.losses != cold.losses:
                raise SystemExit(f"{second.name}: expected no compile and the cold job's losses to the bit")
        print("The second job compiled nothing and computed the same losses to the bit.")


if __name__ == "__main__":
    main()
