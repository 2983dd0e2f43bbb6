"""What a hit through the launcher costs, as a whole process, beside the barest start of the interpreter.

    python bench/launcher.py [--runs 60] [--modules 1795] [--jobs 1]

Everything is measured in one run, in turns, because the machine is never the same twice. The bound that the project
sets itself: a disk hit of a 0.3 MB NEFF takes at most 3.5 times as long as ``<interpreter> -I -S -c pass``. Peers
(ccache, sccache) are measured where they are installed, each with an empty cache of its own, on a C file whose object
is as large as the NEFF. That they hit is read off their own statistics.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from client.launcher.script import install  # noqa: E402 - found through the path above
from tests.fakes.programs import install_neuronx_cc  # noqa: E402

LINE = '    %{0} = stablehlo.add %{1}, %arg0 : tensor<4x4xf32> loc("/home/user/model.py":{0}:7)\n'
WORDS = ("--framework", "XLA", "--target", "trn2", "--lnc", "2", "-O2", "--model-type", "transformer")
BOUND = 3.5
NOISE = 1.3  # how far the median of the barest start may be from the least
IMPORTS = (
    "import gc, os, sys; gc.disable(); sys.path += [{root!r}];"
    "from client.launcher import delivery, mlir_text, plan, start, tier; os._exit(0)"
)


def module(number: int, lines: int) -> str:
    """Return MLIR text of about 85 bytes a line, every line with a location."""
    head = (
        f"// module {number}\nmodule {{\n  func.func public @main(%arg0: tensor<4x4xf32>) -> tensor<4x4xf32> {{\n"
        f"    %0 = stablehlo.constant dense<{number}.0> : tensor<4x4xf32>\n"
    )
    body = "".join(LINE.format(line + 1, line) for line in range(lines))
    return f"{head}{body}    return %{lines} : tensor<4x4xf32>\n  }}\n}}\n"


def timed(command: list[str], environ: dict[str, str], folder: Path) -> float:
    start = time.perf_counter()
    subprocess.run(command, env=environ, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


PEERS = ("ccache", "sccache")
BARE, IMPORTED, HIT = "interpreter -I -S -c pass", "and what a hit imports", "launcher, disk hit"
NEFF_BYTES = 300_000


def peer_environment(environ: dict[str, str], folder: Path) -> dict[str, str]:
    """Return the environment of peers: caches in a folder of ours, and for sccache a server of our own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = {"CCACHE_DIR": str(folder / "ccache"), "SCCACHE_DIR": str(folder / "sccache"), "SCCACHE_SERVER_PORT": port}
    return {**environ, **{name: str(value) for name, value in own.items()}}


def peer(name: str, folder: Path, environ: dict[str, str]) -> list[str] | None:
    """Return a command that hits in a peer's cache, filled by now; None if peer or compiler is not installed."""
    program, compiler = shutil.which(name), shutil.which("cc")
    if program is None or compiler is None:
        return None
    source = folder / "peer.c"
    numbers = ",".join(str(number % 251) for number in range(NEFF_BYTES))
    source.write_text(f"const unsigned char table[] = {{{numbers}}};\nint main(void) {{ return table[7]; }}\n")
    command = [program, compiler, "-O2", "-c", str(source), "-o", str(folder / "peer.o")]
    for _ in range(2):
        timed(command, environ, folder)
    return command


def peer_hits(name: str, environ: dict[str, str]) -> int:
    """Return how many hits a peer has counted."""
    words = ["ccache", "--print-stats"] if name == "ccache" else ["sccache", "--show-stats"]
    said = subprocess.run(words, env=environ, check=True, capture_output=True, text=True).stdout
    pattern = r"_cache_hit\s+([0-9]+)" if name == "ccache" else r"Cache hits\s+([0-9]+)"
    return sum(map(int, re.findall(pattern, said)))


def measure(commands: dict[str, list[str]], runs: int, environ: dict[str, str], folder: Path) -> dict[str, list[float]]:
    """Return how long each command took, in turns with the peers' hits."""
    peers = peer_environment(environ, folder)
    before = {}
    for tool in PEERS:
        command = peer(tool, folder, peers)
        if command is None:
            print(f"{tool} or a C compiler is not installed: not measured")
        else:
            commands[f"{tool}, hit on a C file"] = command
            before[tool] = peer_hits(tool, peers)
    times: dict[str, list[float]] = {what: [] for what in commands}
    try:
        for _ in range(runs):
            for what, command in commands.items():
                times[what].append(timed(command, peers, folder))
        for tool, hits in before.items():
            assert peer_hits(tool, peers) - hits == runs, f"{tool} did not hit"
    finally:
        if "sccache" in before:
            with contextlib.suppress(subprocess.CalledProcessError):
                timed(["sccache", "--stop-server"], peers, folder)
    return times


def tell(times: dict[str, list[float]]) -> None:
    """Print medians, ratios, whether the bound is kept, and where a hit's time goes."""
    medians = {what: statistics.median(taken) for what, taken in times.items()}
    base, loaded, hit = (medians[what] for what in (BARE, IMPORTED, HIT))
    for what, middle in medians.items():
        print(
            f"{what:28} median {middle * 1e3:6.1f} ms  least {min(times[what]) * 1e3:6.1f} ms  {middle / base:5.2f} x"
        )
    quiet = base <= NOISE * min(times[BARE])
    verdict = ("kept" if hit <= BOUND * base else "BROKEN") if quiet else "no verdict, this machine is busy"
    print(f"bound {BOUND} x: {verdict}")
    parts = {"starting the interpreter": base, "imports": loaded - base, "key, tier, copy": hit - loaded}
    print("where a hit's time goes: " + ", ".join(f"{what} {seconds / hit:.0%}" for what, seconds in parts.items()))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--runs", type=int, default=60)
    options.add_argument("--modules", type=int, default=0, help="warm modules in a row, for the total")
    options.add_argument("--jobs", type=int, default=1, help="of the warm modules, how many at once")
    options.add_argument("--lines", type=int, default=600, help="operations of a module; 600 are 50 kB")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-launcher-") as name:
        folder = Path(name)
        real = install_neuronx_cc(folder / "real")
        real.set_mode("large")
        launcher = str(install(folder / "first"))
        path = f"{folder / 'first'}:{real.directory}:{os.environ['PATH']}"
        own = {key: value for key, value in os.environ.items() if not key.startswith(("NEURON_", "XLA_", "NKI_"))}
        environ = {**own, "PATH": path, "NEURON_CACHE_NODE_DIR": str(folder / "node")}

        def compile_words(number: int) -> list[str]:
            return [launcher, "compile", f"{number}.mlir", *WORDS, "--output", f"{number}.neff"]

        for number in range(max(chosen.modules, 1)):
            (folder / f"{number}.mlir").write_text(module(number, chosen.lines))
            timed(compile_words(number), environ, folder)
        interpreter = os.path.realpath(sys.executable)
        bare = [interpreter, "-I", "-S", "-c", "pass"]
        imports = [interpreter, "-IS", "-c", IMPORTS.format(root=str(ROOT))]
        commands = {
            BARE: bare,
            IMPORTED: imports,
            HIT: compile_words(0),
        }
        times = measure(commands, chosen.runs, environ, folder)
        compiles = sum("compile" in call["arguments"] for call in real.calls)
        assert compiles == max(chosen.modules, 1), "what was to be a hit was compiled"
        neff = (folder / "0.neff").stat().st_size
        print(f"NEFF {neff / 1e6:.2f} MB, module {(folder / '0.mlir').stat().st_size / 1e3:.0f} kB, {chosen.runs} runs")
        tell(times)
        if chosen.modules:
            start = time.perf_counter()
            with ThreadPoolExecutor(chosen.jobs) as pool:
                list(pool.map(lambda number: timed(compile_words(number), environ, folder), range(chosen.modules)))
            total = time.perf_counter() - start
            each = total / chosen.modules * 1e3
            print(f"{chosen.modules} warm modules, {chosen.jobs} at once: {total:.1f} s, {each:.1f} ms each")


if __name__ == "__main__":
    main()
