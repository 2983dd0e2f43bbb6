"""What a warm eager call costs: on device "neuron", against the stand-in's own call of the same program, and the CPU.

The stand-in's own call is that of jaxlib's executable on arrays that are there already: once as it stands, and once
with its result taken apart into arrays, without which nobody can use it. All are measured in turns, in short runs, so
that other work on the machine touches all alike. Quoted are medians, and the least run, because such work only adds.

    python bench/eager_call.py [--rounds 200] [--calls 40] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from neuron_backend.eager import dispatch
from neuron_backend.eager.plan import Baked
from neuron_backend.eager.program import Program

if TYPE_CHECKING:
    from collections.abc import Callable

SIZE = 8


class Inputs:
    """What the calls are made with, so that making views of it is not measured with them."""

    def __init__(self, device: str) -> None:
        self.x, self.y = torch.rand(SIZE, SIZE, device=device), torch.rand(SIZE, SIZE, device=device)
        self.transposed = self.y.t()
        self.expanded = self.y[:, :1].expand(SIZE, SIZE)
        self.row, self.mean, self.variance = (self.y[each].clone() for each in range(3))


OPERATORS: dict[str, Callable[[Inputs], torch.Tensor]] = {
    "relu": lambda of: torch.relu(of.x),
    "x + y": lambda of: of.x + of.y,
    "x.add_(y)": lambda of: of.x.add_(of.y),
    "x * 2.5": lambda of: of.x * 2.5,
    "x @ y": lambda of: of.x @ of.y,
    "sum": lambda of: of.x.sum(),
    "softmax": lambda of: torch.softmax(of.x, 1),
    "cat": lambda of: torch.cat([of.x, of.y]),
    "linear with bias": lambda of: functional.linear(of.x, of.y, of.row),
    "x + transposed": lambda of: of.x + of.transposed,
    "x + expanded": lambda of: of.x + of.expanded,
    "clamp": lambda of: of.x.clamp(0.2, 0.7),
    "x ** 2.5": lambda of: of.x**2.5,
    "x // 2.5": lambda of: torch.div(of.x, 2.5, rounding_mode="floor"),
    "rand_like": lambda of: torch.rand_like(of.x),
    "dropout": lambda of: functional.dropout(of.x),
    "layer norm": lambda of: functional.layer_norm(of.x, (SIZE,), of.row, of.mean),
    "batch norm, training": lambda of: functional.batch_norm(of.x, of.mean, of.variance, training=True),
}


def programs_of(operator: Callable[[Inputs], torch.Tensor]) -> list[Program]:
    """Return the programs that ``operator`` becomes, in the order in which they run."""
    inputs = Inputs("neuron")
    dispatch.clear()
    operator(inputs)
    plans = [each for plan in dispatch.plans() for each in (plan.plans.values() if isinstance(plan, Baked) else [plan])]
    return [plan for plan in plans if isinstance(plan, Program)]


def own_calls(operator: Callable[[Inputs], torch.Tensor]) -> dict[str, Callable[[], Any]]:
    """Return the stand-in's own calls of the programs of ``operator``, without and with their results."""
    ready = []
    for program in programs_of(operator):
        direct = program.executable.direct
        signature = program.executable.signature
        inputs = [torch.ones(spec.shape, dtype=spec.dtype) for spec in signature.inputs]
        arrays = [direct.to_array(torch.utils.dlpack.to_dlpack(each), direct.device, None) for each in inputs]
        ready.append((direct, arrays, [direct.handler] * len(signature.outputs)))

    def execute() -> None:
        for direct, arrays, _ in ready:
            direct.execute(arrays)

    def results() -> None:
        for direct, arrays, handlers in ready:
            direct.results(direct.execute(arrays), handlers)

    return {"own call": execute, "own call, result": results}


def measure(functions: dict[str, Callable[[], Any]], rounds: int, calls: int) -> dict[str, list[float]]:
    """Return microseconds a call, one number a round, for each function."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        for _ in range(3):
            function()
    for _ in range(rounds):
        for name, function in functions.items():
            began = time.perf_counter()
            for _ in range(calls):
                function()
            times[name].append((time.perf_counter() - began) / calls * 1e6)
    return times


def main() -> None:
    """Print one line for each operator, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--calls", type=int, default=40)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    table: dict[str, dict[str, dict[str, float]]] = {}
    for name, operator in OPERATORS.items():
        functions = own_calls(operator)
        for device in ("neuron", "cpu"):
            functions[device] = partial(operator, Inputs(device))
        times = measure(functions, arguments.rounds, arguments.calls)
        table[name] = {
            each: {"median": round(statistics.median(runs), 2), "least": round(min(runs), 2)}
            for each, runs in times.items()
        }
    if arguments.json:
        print(json.dumps(table, indent=1))
        return
    columns = ("own call", "own call, result", "neuron", "cpu")
    print(
        f"{'us a call: median (least)':<26}"
        + "".join(f"{column:>20}" for column in columns)
        + f"{'above own call':>20}"
    )
    for name, row in table.items():
        cells = "".join(f"{row[column]['median']:>12.1f} ({row[column]['least']:>5.1f})" for column in columns)
        above = f"{row['neuron']['median'] - row['own call']['median']:>12.1f} "
        above += f"({row['neuron']['least'] - row['own call']['least']:>5.1f})"
        print(f"{name:<26}{cells}{above}")


if __name__ == "__main__":
    main()
