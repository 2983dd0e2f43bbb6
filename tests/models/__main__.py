"""``python -m tests.models``: run steps of real architectures on both paths and print a table."""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.models import report
from tests.models.outcome import EAGER, GRAPH, PATHS, Figures
from tests.sweep.outcome import OK
from tests.sweep.runner import run

if TYPE_CHECKING:
    from tests.sweep.outcome import Task

COMMAND = (sys.executable, "-m", "tests.models.worker")
SECONDS = 600.0
BATCH = 10


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.models", description=__doc__)
    parser.add_argument("--eager", action="append_const", const=EAGER, dest="paths", help="operators on neuron tensors")
    parser.add_argument("--graph", action="append_const", const=GRAPH, dest="paths", help="torch.compile")
    parser.add_argument("--names", nargs="+", default=["*"], metavar="PATTERN", help="architectures, with * and ?")
    parser.add_argument("--failed", action="store_true", help="only what the record does not have as ok")
    parser.add_argument("--jobs", type=int, default=1, help="child processes at once")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="limit for one architecture")
    parser.add_argument("--cache", type=Path, help="keep compiled programs here (default: a folder that is removed)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write all rows here")
    parser.add_argument("--record", action="store_true", help="update the lists in tests/models/records")
    return parser.parse_args()


def _progress(row: Figures) -> None:
    sys.stderr.write(f"{row.status:12} {row.operator} {row.error:g} {row.seconds:g} s {row.reason}\n")


def main() -> int:
    """Run, print, write."""
    options = _arguments()
    from tests.models.building import NAMES  # noqa: PLC0415 - after the arguments were read: --help is quick

    results = {}
    with tempfile.TemporaryDirectory() as folder:
        environment = {"NEURON_CACHE_NODE_DIR": str(options.cache or folder), "NEURON_CACHE_URL": ""}
        for task in options.paths or PATHS:
            known = report.read_record(task)
            names = [name for name in NAMES if any(fnmatch.fnmatchcase(name, each) for each in options.names)]
            if options.failed:
                names = [name for name in names if name not in known or known[name].status != OK]

            def keep(row: Figures, task: Task = task) -> None:
                _progress(row)
                if options.record:  # at once: a run of an hour may be interrupted
                    report.write_record(task, {**report.read_record(task), row.operator: row}.values())

            rows = run(
                task,
                names,
                jobs=options.jobs,
                seconds=options.seconds,
                environment=environment,
                command=COMMAND,
                kind=Figures,
                batch_size=BATCH,
                progress=keep,
            )
            sys.stdout.write(f"\n{task.mode}\n{report.table(rows)}\n")
            results[task.mode] = [each.to_json() for each in rows]
            if options.json:
                options.json.write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
