"""A process of a job, without torch: asks for many keys in an order of its own, and compiles what it must.

Arguments: how many keys, bytes of each artifact, seconds of each compile, number of this process. It says ``ready``,
waits for a line, and ends with one line of JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
import time

from client import Cache, Compiled, CompilerIdentity, Ir, KeyDocument, Kind, neff

keys, size, seconds, number = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
compiled = []


def document(key: int) -> KeyDocument:
    digest = hashlib.sha256(str(key).encode()).hexdigest()
    return KeyDocument(Kind.GRAPH, Ir("stablehlo", "vhlo", "1.0.0", digest), CompilerIdentity("test", "1"), "t", 1)


def compile_one(key: int) -> Compiled:
    compiled.append(key)
    time.sleep(seconds)
    # no compiler is deterministic: each build differs, and no byte of it can be squeezed out
    data = neff.pack(
        {"key": str(key).encode(), "code": os.urandom(size)}, name="n", build_version="1", uuid=os.urandom(16)
    )
    return Compiled({"model.neff": data, "compile.log": b"compiled\n"}, seconds)


def main() -> None:
    cache = Cache.from_environment()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    digests, slowest, sources = {}, 0.0, []
    order = random.Random(number).sample(range(keys), keys)  # noqa: S311 - any order will do
    for key in order:
        begin = time.monotonic()
        artifact = cache.get_or_compile(document(key), lambda key=key: compile_one(key))
        slowest = max(slowest, time.monotonic() - begin)
        assert neff.unpack(artifact.neff)["key"] == str(key).encode()
        digests[artifact.key] = hashlib.sha256(artifact.neff).hexdigest()
        sources.append(artifact.source)
    cache.close()
    sys.stdout.write(json.dumps({"compiled": compiled, "digests": digests, "slowest": slowest, "sources": sources}))


main()
