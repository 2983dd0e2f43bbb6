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
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from neuron_backend.eager import dispatch
from neuron_backend.eager.plan import Baked
from neuron_backend.eager.program import Program

if TYPE_CHECKING:
    from collections.abc import Callable

SIZE = 8

OPERATORS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "relu(x)": lambda x, _: torch.relu(x),
    "x + y": lambda x, y: x + y,
    "x.add_(y)": lambda x, y: x.add_(y),
    "x * 2.5": lambda x, _: x * 2.5,
    "x @ y": lambda x, y: x @ y,
    "x.sum()": lambda x, _: x.sum(),
    "softmax(x)": lambda x, _: torch.softmax(x, 1),
    "cat(x, y)": lambda x, y: torch.cat([x, y]),
    "linear(x, y, y[0])": lambda x, y: functional.linear(x, y, y[0]),
    "x + y.t()": lambda x, y: x + y.t(),
    "x + y[:, :1]": lambda x, y: x + y[:, :1].expand(SIZE, SIZE),
    "x.clamp(.2, .7)": lambda x, _: x.clamp(0.2, 0.7),
    "x ** 2.5": lambda x, _: x**2.5,
    "x // 2.5": lambda x, _: torch.div(x, 2.5, rounding_mode="floor"),
    "rand_like(x)": lambda x, _: torch.rand_like(x),
    "dropout(x)": lambda x, _: functional.dropout(x),
    "batch_norm(x)": lambda x, y: functional.batch_norm(x, y[0], y[1], training=True),
}


def programs_of(operator: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> list[Program]:
    """Return the programs that ``operator`` becomes, in the order in which they run."""
    x, y = torch.rand(SIZE, SIZE, device="neuron"), torch.rand(SIZE, SIZE, device="neuron")
    dispatch.clear()
    operator(x, y)
    plans = [each for plan in dispatch.plans() for each in (plan.plans.values() if isinstance(plan, Baked) else [plan])]
    return [plan for plan in plans if isinstance(plan, Program)]


def own_calls(operator: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> dict[str, Callable[[], Any]]:
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
            x, y = torch.rand(SIZE, SIZE, device=device), torch.rand(SIZE, SIZE, device=device)
            functions[device] = lambda operator=operator, x=x, y=y: operator(x, y)
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
