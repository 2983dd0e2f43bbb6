"""What checks of values cost: steps and calls with them and without, by two processes that take turns.

    python bench/value_checks.py [--rounds 12]

``NEURON_BACKEND_CHECK`` is the only difference between the two. Each round runs every piece of work for a fraction of a
second in one process and then in the other. Quoted is CPU time, the median and the least of the rounds: so that other
work on the machine counts little.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

COUNTS = {"train_gpt": 3, "train_gpt, loss compiled": 3, "train_digits": 20}
CALLS = 300


def _works() -> dict[str, Callable[[], Any]]:
    import torch  # noqa: PLC0415 - in the child, which has the setting
    from torch import nn  # noqa: PLC0415
    from torch.nn import functional  # noqa: PLC0415

    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
    from train_gpt import BATCH, CONTEXT, GPT  # noqa: PLC0415

    torch.manual_seed(0)
    classes = 96
    pieces = torch.randint(classes, (BATCH, CONTEXT + 1)).to("neuron")
    tokens, following = pieces[:, :-1].contiguous(), pieces[:, 1:].flatten()

    def trained(model: Any, compiled: Callable[..., torch.Tensor]) -> Callable[[], Any]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step() -> float:
            optimizer.zero_grad()
            loss = compiled()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            return loss.item()

        return step

    gpt, whole = (GPT(classes).to("neuron") for _ in range(2))
    model = torch.compile(gpt, backend="neuron")
    loss = torch.compile(lambda x: functional.cross_entropy(whole(x).flatten(0, 1), following), backend="neuron")
    digits = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to("neuron")
    images, labels = torch.rand(64, 64).to("neuron"), torch.randint(10, (64,)).to("neuron")
    table, ids, logits = torch.rand(96, 64).to("neuron"), tokens, torch.rand(64, 10).to("neuron")
    columns, numbers = labels.unsqueeze(1), labels + 1
    return {
        "train_gpt": trained(gpt, lambda: functional.cross_entropy(model(tokens).flatten(0, 1), following)),
        "train_gpt, loss compiled": trained(whole, lambda: loss(tokens)),
        "train_digits": trained(digits, lambda: functional.cross_entropy(digits(images), labels)),
        "embedding": lambda: functional.embedding(ids, table),
        "cross_entropy": lambda: functional.cross_entropy(logits, labels),
        "gather": lambda: logits.gather(1, columns),
        "x[i]": lambda: table[labels],
        "scatter": lambda: logits.scatter(1, columns, 0.0),
        "// of integers": lambda: labels // numbers,
        "relu, which has no check": lambda: torch.relu(logits),
    }


def _work(setting: str, connection: Connection) -> None:
    os.environ["NEURON_BACKEND_CHECK"] = setting
    works = _works()
    for work in works.values():
        for _ in range(5):
            work()
    connection.send(list(works))
    while (name := connection.recv()) is not None:
        work, count = works[name], COUNTS.get(name, CALLS)
        began = time.process_time()
        for _ in range(count):
            work()
        connection.send((time.process_time() - began) / count)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    rounds = parser.parse_args().rounds
    context = get_context("spawn")
    ends = {}
    for setting in ("0", "1"):
        ours, theirs = context.Pipe()
        context.Process(target=_work, args=(setting, theirs), daemon=True).start()
        ends[setting] = ours
    names = next(end.recv() for end in ends.values())
    seconds: dict[tuple[str, str], list[float]] = {}
    for each in range(rounds):
        for name in names:
            for setting in ("0", "1") if each % 2 else ("1", "0"):
                ends[setting].send(name)
                seconds.setdefault((name, setting), []).append(ends[setting].recv())
    for end in ends.values():
        end.send(None)
    print(f"{'microseconds of CPU time':28} {'off':>10} {'on':>10} {'least off':>10} {'least on':>10} {'more':>7}")
    for name in names:
        off, on = seconds[name, "0"], seconds[name, "1"]
        least = min(on) / min(off) - 1
        figures = (statistics.median(off), statistics.median(on), min(off), min(on))
        print(f"{name:28} {' '.join(f'{1e6 * each:10.1f}' for each in figures)} {least:7.1%}")


if __name__ == "__main__":
    main()
