"""Run the training examples as jobs of several ranks, each rank a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).resolve().parents[2]
LIMIT_SECONDS = 110


@dataclass
class Rank:
    """What one process of a job did."""

    losses: list[float]
    summary: dict[str, Any]
    stderr: str
    extra: dict[str, Any] = field(default_factory=dict)


def job_environment(node: Path, url: str, config: Path | None = None, **more: str) -> dict[str, str]:
    """Return the environment of a process on the node tier ``node``."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NEURON_", "XLA_", "NKI_"))}
    environment = {**kept, "NEURON_CACHE_NODE_DIR": str(node), **more}
    if url:
        environment["NEURON_CACHE_URL"] = url
    if config is not None:
        environment["XDG_CONFIG_HOME"] = str(config)
    return environment


def run_ranks(
    example: str, environments: Sequence[Mapping[str, str]], folder: Path, *, steps: int, device: str = "neuron"
) -> list[Rank]:
    """Run ``example`` once for each environment, all at the same time, and return what each did."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        processes = []
        for number, environment in enumerate(environments):
            errors = stack.enter_context((folder / f"{example}-{number}.err").open("w+"))
            process = subprocess.Popen(
                [
                    sys.executable,
                    str(ROOT / "examples" / f"{example}.py"),
                    *("--device", device, "--steps", str(steps), "--json"),
                ],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={
                    **environment,
                    "RANK": str(number),
                    "NEURON_CACHE_SUMMARY": str(folder / f"{example}-{number}.json"),
                },
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            processes.append((process, errors))
        ranks = []
        for number, (process, errors) in enumerate(processes):
            output, _ = process.communicate(timeout=LIMIT_SECONDS)
            errors.seek(0)
            complaint = errors.read()
            assert process.returncode == 0, complaint
            summary = folder / f"{example}-{number}.json"
            ranks.append(
                Rank(
                    json.loads(output.splitlines()[-1])["losses"],
                    json.loads(summary.read_text()) if summary.exists() else {},
                    complaint,
                )
            )
    return ranks
