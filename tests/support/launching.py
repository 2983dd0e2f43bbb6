"""A host with a launcher before a compiler, in folders of a test's own."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from client.launcher.script import install
from tests.fakes.programs import FakeCompiler, install_neuronx_cc
from tests.fakes.waiting import HANG_SECONDS
from tests.support.jobs import job_environment

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

WORDS = ("--framework", "XLA", "--target", "trn2", "--lnc", "2", "-O2")
LIMIT_SECONDS = HANG_SECONDS


def module_text(number: int = 0) -> str:
    return (
        f"module @m {{\n  func.func public @main(%arg0: tensor<4x4xf32>) -> tensor<4x4xf32> {{\n"
        f"    %0 = stablehlo.constant dense<{number}.0> : tensor<4x4xf32>\n"
        "    %1 = stablehlo.add %arg0, %0 : tensor<4x4xf32>\n    return %1 : tensor<4x4xf32>\n  }\n}\n"
    )


def kernel_config(path: Path | str, **more: Any) -> str:
    """Return the ``backend_config`` of a custom call that runs the NKI kernel at ``path``."""
    value = {"func_name": "k", "klir_binary": {"binary": str(path), "input_names": ["in0"]}, "grid": 1, **more}
    return base64.b64encode(json.dumps(value).encode()).decode()


def kernel_call(path: Path | str) -> str:
    """Return the text of a module that calls an NKI kernel."""
    call = f'stablehlo.custom_call @AwsNeuronCustomNativeKernel(%arg0) {{backend_config = "{kernel_config(path)}"}}'
    return module_text().replace("    return", f"    %2 = {call} : (tensor<4x4xf32>) -> tensor<4x4xf32>\n    return")


@dataclass(frozen=True)
class Host:
    """The launcher in ``first``, the compiler in ``real``; jobs work in ``work``."""

    folder: Path
    real: FakeCompiler
    first: Path
    work: Path

    def environment(self, url: str = "", config: Path | None = None, **more: str) -> dict[str, str]:
        path = f"{self.first}:{self.real.directory}:{os.environ['PATH']}"
        return job_environment(self.folder / "node", url, config, **{"PATH": path, **more})

    def start(
        self,
        words: Sequence[str],
        environment: dict[str, str] | None = None,
        *,
        before: Sequence[str] = (),
        **more: Any,
    ) -> subprocess.Popen[bytes]:
        settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": self.work, **more}
        program = str(self.first / "neuronx-cc")
        return subprocess.Popen([*before, program, *words], env=environment or self.environment(), **settings)

    def run(
        self, *words: str, environment: dict[str, str] | None = None, **more: Any
    ) -> subprocess.CompletedProcess[bytes]:
        with self.start(words, environment, **more) as process:
            try:
                output, errors = process.communicate(timeout=LIMIT_SECONDS)
            finally:
                process.kill()
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)

    def compile(self, source: str = "in.mlir", *more: str, **settings: Any) -> subprocess.CompletedProcess[bytes]:
        return self.run("compile", source, *WORDS, "--output", "out.neff", *more, **settings)

    @property
    def compiles(self) -> int:
        return sum("compile" in call["arguments"] for call in self.real.calls)

    @property
    def passed(self) -> list[str]:
        record = self.folder / "node" / "v1" / ".launcher" / "passed.jsonl"
        return [json.loads(line)["why"] for line in record.read_text().splitlines()] if record.exists() else []

    def leftovers(self) -> list[str]:
        """Return what should not be there after a run: temporary files beside outputs and in TMPDIR."""
        return [path.name for path in self.work.iterdir() if path.name.startswith(".")]


def new_host(folder: Path) -> Host:
    work = folder / "work"
    work.mkdir(parents=True)
    (work / "in.mlir").write_text(module_text())
    install(folder / "first")
    return Host(folder, install_neuronx_cc(folder / "real"), folder / "first", work)
