"""A job of a few programs against the shared cache at argv[1], with its node tier in argv[2]; says what it cost.

Prints JSON: seconds, and the bytes by which its memory grew at its peak. The result of every program must be right.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

import client.transports.http  # noqa: F401 - what every job loads is no cost of a lie
from client.artifact import Compiled
from client.cache import Cache
from client.settings import Settings
from client.transports import open_transport
from tests.support.lying_server import NEFF, PROGRAMS


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def main() -> None:
    url, node = sys.argv[1:]
    cache = Cache(Settings(url=url, node_dir=Path(node)), open_transport=lambda: open_transport(url, "default", {}))
    before, start = peak(), time.monotonic()
    for each in PROGRAMS:
        assert cache.get_or_compile(each, lambda: Compiled({"model.neff": NEFF}, 0.1)).neff == NEFF
    cache.close()
    sys.stdout.write(json.dumps({"seconds": time.monotonic() - start, "bytes": peak() - before}))


if __name__ == "__main__":
    main()
