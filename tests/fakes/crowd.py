"""A crowd of processes on one node tier, all of which want the same programs at the same moment; some are killed.

Arguments: folder, processes, keys, slots, seconds of each compile, how many are killed, seed. A compiler is a process
of its own: it writes ``+ <number of its owner>`` into ``<folder>/compilers`` when it begins, and ``- …`` when it ends.
Each process that lives to its end leaves ``<folder>/results/<number>``, and one line of JSON says who was killed.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from client.artifact import Compiled
from client.cache import Cache
from client.settings import Settings
from tests.client.programs import build, document
from tests.fakes.waiting import HANG_SECONDS

LIMIT = 400


def use_all(folder: Path, number: int, keys: int, slots: int, seconds: float) -> None:
    """Use each program once, in an order of our own."""
    cache = Cache(Settings(node_dir=folder / "node", compile_slots=slots))
    compiles: list[int] = []

    def compiler(key: int) -> Compiled:
        compiles.append(key)
        log = folder / "compilers"
        script = f"echo + {number} >> {log}; sleep {seconds}; echo - {number} >> {log}"
        subprocess.run(["/bin/sh", "-c", script], check=True, timeout=HANG_SECONDS)
        return Compiled({"model.neff": build(20_000)}, seconds)

    digests = {}
    for key in random.Random(number).sample(range(keys), keys):  # noqa: S311 - an order, no secret
        made = cache.get_or_compile(document(f"program {key}"), lambda key=key: compiler(key))
        digests[key] = hashlib.sha256(made.neff).hexdigest()
    cache.close()
    result = folder / "results" / f"{number}"
    errors = cache.statistics.errors
    result.write_text(json.dumps({"digests": digests, "compiles": compiles, "errors": errors}))


def main() -> None:
    folder, (processes, keys, slots) = Path(sys.argv[1]), map(int, sys.argv[2:5])
    seconds, kills, seed = float(sys.argv[5]), int(sys.argv[6]), int(sys.argv[7])
    (folder / "results").mkdir(parents=True, exist_ok=True)
    barrier, opener = os.pipe()
    children: dict[int, int] = {}
    for number in range(processes):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                signal.alarm(LIMIT)  # whatever becomes of the others
                os.close(opener)
                os.read(barrier, 1)
                use_all(folder, number, keys, slots, seconds)
                status = 0
            finally:
                os._exit(status)
        children[number] = child
    signal.alarm(LIMIT)
    os.close(opener)
    chance = random.Random(seed)  # noqa: S311 - one that can be repeated
    doomed = chance.sample(sorted(children), kills)
    begin, lasts = time.monotonic(), keys * (seconds + 0.05) / slots
    for moment, number in sorted((chance.uniform(0, lasts), number) for number in doomed):
        time.sleep(max(begin + moment - time.monotonic(), 0))
        os.kill(children[number], signal.SIGKILL)  # not yet waited for, so the id is still its own
    ends = {number: os.waitpid(child, 0)[1] for number, child in children.items()}
    sys.stdout.write(json.dumps({"ends": ends, "seconds": time.monotonic() - begin}))


main()
