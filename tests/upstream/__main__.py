"""``python -m tests.upstream``: run a share of PyTorch's own tests on device neuron and say what came of it."""

from __future__ import annotations

import argparse
import fnmatch
import json
import re
import sys
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from tests.upstream import choosing, files, page, record
from tests.upstream.outcome import GOOD, Limits
from tests.upstream.reasons import kind
from tests.upstream.running import judge

if TYPE_CHECKING:
    from tests.upstream.outcome import Outcome


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.upstream", description=__doc__)
    parser.add_argument("files", nargs="*", default=["*"], metavar="FILE", help="names of files, with * and ?")
    parser.add_argument("--share", type=int, default=20, metavar="N", help="so many tests that count of each file")
    parser.add_argument("--number", type=int, default=0, help="another number chooses other tests")
    parser.add_argument("--rotate", type=int, metavar="N", help="only so many files, chosen by the number")
    parser.add_argument("--match", metavar="REGEX", help="only tests whose names match")
    parser.add_argument("--failed", action="store_true", help="only what the record has as failed")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no test after so long")
    parser.add_argument("--file-seconds", type=float, default=float("inf"), help="the same for one file")
    parser.add_argument("--limit", type=float, default=Limits.test, help="seconds for one test")
    parser.add_argument("--json", type=Path, metavar="OUT", help="append all outcomes here, with traces, a line each")
    parser.add_argument("--record", action="store_true", help="add to the records and write docs/upstream.md")
    return parser.parse_args()


def main() -> int:
    """Run, print, write; return 1 if anything that counts failed."""
    options = _arguments()
    folder = files.folder()
    if folder is None:
        sys.stderr.write(f"{files.HOW_TO_GET}\n")
        return 2
    wanted = [name if name.endswith((".py", "*")) else f"{name}.py" for name in options.files]
    names = [each for each in files.FILES if any(fnmatch.fnmatchcase(each, pattern) for pattern in wanted)]
    if options.rotate:
        names = choosing.files(names, options.rotate, number=options.number)
    until = time.monotonic() + options.seconds
    failed = False
    for file in names:
        if not (folder / file).is_file():
            sys.stdout.write(f"{file}: not in the folder\n")
            continue
        left = until - time.monotonic()
        if left <= 0:
            break

        def progress(outcome: Outcome, file: str = file) -> None:
            if outcome.status not in GOOD:
                sys.stdout.write(f"{file} {outcome.name}: {outcome.status}: {outcome.reason[:160]}\n")
                sys.stdout.flush()
            if options.json:
                with options.json.open("a") as out:
                    out.write(json.dumps({"file": file, "kind": kind(outcome), **asdict(outcome)}) + "\n")

        before = record.read(file, "neuron")
        found = judge(
            folder,
            file,
            options.share,
            number=options.number,
            limits=Limits(test=options.limit),
            seconds=min(left, options.file_seconds),
            pattern=re.compile(options.match) if options.match else None,
            names=[e.name for e in before.outcomes.values() if e.status not in GOOD] if options.failed else None,
            progress=progress,
        )
        counts = Counter(each.status for each in found.outcomes.values())
        said = found.unloaded or ", ".join(f"{count} {status}" for status, count in counts.most_common())
        sys.stdout.write(f"{file} (number {options.number}): {found.tests} tests; {said}\n")
        sys.stdout.flush()
        failed |= bool(counts.keys() - GOOD)
        if options.record:
            found.outcomes = {**before.outcomes, **found.outcomes}
            record.write(found, "neuron")
            page.DOCUMENT.write_text(page.document())
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
