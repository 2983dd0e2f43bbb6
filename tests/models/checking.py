"""One architecture on one path, against the CPU, and what it took."""

from __future__ import annotations

import os
import time
import warnings
from typing import TYPE_CHECKING, Any

import torch
import torch._dynamo
from torch._dynamo.utils import counters

import neuron_backend
from client.cache import Cache
from neuron_backend import programs
from neuron_backend.eager import dispatch
from neuron_backend.lowering import UnsupportedOperator
from tests.models import running
from tests.models.building import Subject, build
from tests.models.outcome import GRAPH, Figures
from tests.sweep.outcome import HOST, NO_REFERENCE, OK, UNSUPPORTED, WRONG

if TYPE_CHECKING:
    from torch import nn

    from tests.sweep.outcome import Task


DRAWS = 3


def check(name: str, task: Task) -> Figures:
    """Build an architecture, run a step on the CPU and one on the device, and compare.

    Where outputs are right and gradients are not, further inputs are tried: an activation with a kink, as ReLU has, may
    lie within rounding of it, and then a gradient is one thing or another. A wrong gradient is wrong on all inputs.
    """
    for draw in range(DRAWS):
        figures = _drawn(name, task, draw)
        if figures.status != WRONG or not figures.reason.startswith("gradient"):
            break
    return figures


def _drawn(name: str, task: Task, draw: int) -> Figures:
    try:
        subject = build(name, draw)
        cpu = running.step(subject, device="cpu")
        exact = running.step(subject, device="cpu", dtype=torch.float64)
    except Exception as error:  # noqa: BLE001 - whatever it is, there is nothing to compare with
        return Figures(name, NO_REFERENCE, f"{type(error).__name__}: {error}")
    _begin_anew()
    before = time.monotonic()
    status, reason, share = _verdict(subject, task, cpu, exact)
    host = neuron_backend.get_fallback_ops()
    if status == OK and host:
        status, reason = HOST, " ".join(sorted(host))
    return Figures(
        name,
        status,
        reason,
        programs=len(neuron_backend.cache_stats()["keys"]),
        graphs=counters["stats"]["unique_graphs"],
        breaks=sum(counters["graph_break"].values()),
        host=" ".join(f"{operator}x{count}" for operator, count in sorted(host.items())),
        error=round(share, 3),
        seconds=round(time.monotonic() - before, 1),
    )


def _verdict(subject: Subject, task: Task, cpu: running.Results, exact: running.Results) -> tuple[str, str, float]:
    def compiled(network: nn.Module) -> Any:
        return torch.compile(network, backend="neuron") if task.mode == GRAPH.mode else network

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results = running.step(subject, device="neuron", compiled=compiled)
    except UnsupportedOperator as error:
        return UNSUPPORTED, f"{error.operator}: {error.reason}", 0.0
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what the table has to say
        return UNSUPPORTED, f"{type(error).__name__}: {error}", 0.0
    share, where = running.error(results, cpu, exact)
    return (OK, "", share) if share <= 1 else (WRONG, f"{where}: {share:.3g} times what is allowed", share)


def _begin_anew() -> None:
    """Count from zero: a cache object of its own over the same node tier, no plans, a fresh Dynamo."""
    torch._dynamo.reset()
    counters.clear()
    dispatch.clear()
    neuron_backend.clear_fallback_ops()
    old = programs.current()
    old.cache.close()
    programs._programs = programs.Programs(Cache.from_environment(os.environ), old._compiler, old._runtime)
