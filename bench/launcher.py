"""What a hit through the launcher costs, as a whole process, beside the barest start of the interpreter.

    python bench/launcher.py [--runs 60] [--modules 1795] [--tool ccache]

Everything is measured in one run, in turns, because the machine is never the same twice. The bound that the project
sets itself: a disk hit of a 0.3 MB NEFF takes at most 3.5 times as long as ``<interpreter> -I -S -c pass``. Peers
(ccache, sccache) are measured on a C file of their own where they are installed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
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


def peer(name: str, folder: Path) -> list[str] | None:
    """Return a command that hits in a peer's cache, filled by now."""
    program, compiler = shutil.which(name), shutil.which("cc")
    if program is None or compiler is None:
        return None
    source = folder / "peer.c"
    source.write_text('#include <stdio.h>\nint main(void) { puts("hello"); return 0; }\n')
    command = [program, compiler, "-O2", "-c", str(source), "-o", str(folder / "peer.o")]
    for _ in range(2):
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return command


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--runs", type=int, default=60)
    options.add_argument("--modules", type=int, default=0, help="warm modules in a row, for the total")
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
            "interpreter -I -S -c pass": bare,
            "and what a hit imports": imports,
            "launcher, disk hit": compile_words(0),
        }
        for tool in ("ccache", "sccache"):
            command = peer(tool, folder)
            if command is not None:
                commands[f"{tool}, hit on a C file"] = command
        times: dict[str, list[float]] = {what: [] for what in commands}
        for _ in range(chosen.runs):
            for what, command in commands.items():
                times[what].append(timed(command, environ, folder))
        compiles = sum("compile" in call["arguments"] for call in real.calls)
        assert compiles == max(chosen.modules, 1), "what was to be a hit was compiled"
        base = statistics.median(times["interpreter -I -S -c pass"])
        neff = (folder / "0.neff").stat().st_size
        print(f"NEFF {neff / 1e6:.2f} MB, module {(folder / '0.mlir').stat().st_size / 1e3:.0f} kB, {chosen.runs} runs")
        for what, taken in times.items():
            middle = statistics.median(taken)
            print(f"{what:28} median {middle * 1e3:6.1f} ms  least {min(taken) * 1e3:6.1f} ms  {middle / base:5.2f} x")
        quiet = base <= NOISE * min(times["interpreter -I -S -c pass"])
        kept = statistics.median(times["launcher, disk hit"]) <= BOUND * base
        verdict = ("kept" if kept else "BROKEN") if quiet else "no verdict, this machine is busy"
        print(f"bound {BOUND} x: {verdict}")
        if chosen.modules:
            start = time.perf_counter()
            for number in range(chosen.modules):
                timed(compile_words(number), environ, folder)
            total = time.perf_counter() - start
            each = total / chosen.modules * 1e3
            print(f"{chosen.modules} warm modules one after the other: {total:.1f} s, {each:.1f} ms each;")
            print(f"of which starting the interpreter alone is {base * chosen.modules:.1f} s")


if __name__ == "__main__":
    main()
