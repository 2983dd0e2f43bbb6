"""What the training examples share: their options, their devices and the line they end with."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def arguments(description: str) -> argparse.Namespace:
    """Parse the options every example has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--device", choices=["cpu", "neuron"], default="neuron")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    options = parser.parse_args()
    if options.steps < 1:
        parser.error("--steps: expected 1 or more")
    return options


def show(step: int, loss: float, options: argparse.Namespace) -> None:
    """Print a line of progress, where a person looks on."""
    if not options.json and (step % 10 == 0 or step == options.steps - 1):
        print(f"step {step:4d}  loss {loss:.4f}")


def finish(example: str, losses: Sequence[float], options: argparse.Namespace) -> None:
    """End the run: one line of JSON that holds no time, so that equal runs print equal lines."""
    if options.json:
        result = {
            "example": example,
            "device": options.device,
            "steps": options.steps,
            "seed": options.seed,
            "losses": list(losses),
        }
        print(json.dumps(result), flush=True)
    else:
        print(f"{example} on {options.device}: loss {losses[0]:.4f} -> {losses[-1]:.4f}", file=sys.stdout)
