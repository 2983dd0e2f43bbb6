"""``python -m tests.sweep``: sweep OpInfo and print a table by operator."""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from tests.sweep import report
from tests.sweep.outcome import OK, Outcome, Task
from tests.sweep.runner import SECONDS, run


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.sweep", description=__doc__)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--lower", action="store_const", const="lowered", dest="mode", help="whole graphs, no fallback")
    mode.add_argument("--device", action="store_const", const="device", dest="mode", help="eager, on neuron tensors")
    mode.add_argument("--torch-mlir", action="store_const", const="torch_mlir", dest="mode", help="where installed")
    parser.add_argument("--dtype", nargs="+", default=["float32"], help="float32 bfloat16 float16 int64 bool complex64")
    parser.add_argument("--gradient", action="store_true", help="the backward pass too")
    parser.add_argument("--ops", nargs="+", default=["*"], metavar="PATTERN", help="OpInfo names, with * and ?")
    parser.add_argument("--failed", action="store_true", help="only what the record does not have as ok")
    parser.add_argument("--samples", type=int, default=2, help="samples of each operator (default 2)")
    parser.add_argument("--jobs", type=int, default=1, help="child processes at once")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="limit for one operator")
    parser.add_argument("--cache", type=Path, help="keep compiled programs here (default: a folder that is removed)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write all outcomes here")
    parser.add_argument("--record", action="store_true", help="update the lists in tests/sweep/records")
    return parser.parse_args()


def _progress(outcome: Outcome) -> None:
    if sys.stderr.isatty() or outcome.status != OK:
        sys.stderr.write(f"{outcome.status:12} {outcome.operator}: {outcome.reason}\n")


def main() -> int:
    """Sweep, print, write."""
    options = _arguments()
    import torch  # noqa: PLC0415 - after the arguments were read: --help is quick

    from tests.sweep import entries, torch_mlir  # noqa: PLC0415

    if options.mode == "torch_mlir" and not torch_mlir.installed():
        sys.stdout.write("torch-mlir is not installed: no such column\n")
        return 0
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        environment = {"NEURON_CACHE_NODE_DIR": str(options.cache or folder), "NEURON_CACHE_URL": ""}
        for dtype in options.dtype:
            task = Task(options.mode, dtype, options.gradient, options.samples)
            whole = entries.selected(getattr(torch, dtype), gradient=options.gradient and options.mode != "device")
            names = [name for name in whole if any(fnmatch.fnmatchcase(name, each) for each in options.ops)]
            known = {}
            if report.record_path(task).exists():
                known = {each.operator: each for each in report.read_record(report.record_path(task))}
            if options.failed:
                names = [name for name in names if name not in known or known[name].status != OK]
            outcomes = run(
                task,
                names,
                jobs=options.jobs,
                seconds=options.seconds,
                environment=environment,
                progress=_progress,
            )
            sys.stdout.write(f"\n{task.name}\n{report.table(outcomes)}\n")
            results[task.name] = [each.to_json() for each in outcomes]
            if options.record:
                measured = {each.operator: each for each in outcomes}
                if known.keys() - measured.keys():  # the others keep what they were measured with
                    task = replace(task, samples=min(task.samples, report.samples_of(report.record_path(task))))
                report.write_record(task, {**known, **measured}.values())
            if options.json:
                options.json.write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    sys.exit(main())
