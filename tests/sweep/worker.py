"""A child process of the sweep: checks the operators named on standard input, one JSON line before and after each."""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import torch

import neuron_backend  # noqa: F401 - says so if there is no device library
from tests.sweep import entries, lowered, on_device, torch_mlir
from tests.sweep.answering import answer
from tests.sweep.outcome import NO_REFERENCE, Outcome, Task

MODES = {"lowered": lowered.check, "device": on_device.check, "torch_mlir": torch_mlir.check}


def verdict(name: str, task: Task) -> Outcome:
    """Check one operator: it is what the worst of its samples is."""
    dtype = getattr(torch, task.dtype)
    gradient = task.gradient and entries.dtype_of(entries.ENTRIES[name], dtype, gradient=True) is not None
    worst = None
    for sample in entries.samples(name, dtype, gradient=gradient, count=task.samples):
        outcome = MODES[task.mode](name, sample, gradient=gradient)
        worst = outcome if worst is None else worst.worse(outcome)
    return worst or Outcome(name, NO_REFERENCE, "it has no sample")


if __name__ == "__main__":
    answer(verdict, Outcome)
