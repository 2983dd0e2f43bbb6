"""Run the tests that need no torch on every other supported Python found here.

Looks for ``python3.12`` and ``python3.13`` on PATH and among pyenv's versions. Each gets an environment of its own
below ``.venv``; one that is not found is one visible line. The golden keys are computed on each. Of the other tests
a quarter runs here, on one Python each, chosen by the test's name; with ``--all`` every test runs on each of them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("3.12", "3.13")
TESTS = ("tests/client", "tests/cache_server", "tests/golden")
PACKAGES = ("pytest", "pytest-timeout", "pytest-randomly", "pytest-xdist", "pyyaml", "hypothesis", "httpx")


def runs(command: list[str], version: str) -> bool:
    """Return whether ``command`` is a Python of ``version``: pyenv's shims exist for versions that do not run."""
    probe = "import sys; print('%d.%d' % sys.version_info[:2])"
    answer = subprocess.run([*command, "-c", probe], capture_output=True, text=True, check=False)
    return answer.returncode == 0 and answer.stdout.strip() == version


def find(version: str) -> str | None:
    """Return an interpreter of ``version``, or None."""
    candidates = [shutil.which(f"python{version}")]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates += [str(path / "bin" / "python") for path in sorted(pyenv.glob(f"{version}.*"), reverse=True)]
    return next((path for path in candidates if path is not None and runs([path], version)), None)


def prepare(interpreter: str, version: str) -> Path:
    """Return the Python of an environment that holds this project without torch, made if it is not there."""
    folder = ROOT / ".venv" / f"python{version}"
    python, done = folder / "bin" / "python", folder / ".done"
    newest = max((ROOT / name).stat().st_mtime for name in ("pyproject.toml", "constraints.txt"))
    if not done.exists() or done.stat().st_mtime < newest:
        subprocess.run([interpreter, "-m", "venv", "--clear", str(folder)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
        constraints = ["-c", str(ROOT / "constraints.txt")]
        subprocess.run([*pip, *constraints, "hatchling", "editables"], check=True)
        project = f"{ROOT}[otel,server,torch]"
        subprocess.run([*pip, *constraints, "--no-build-isolation", *PACKAGES, "-e", project], check=True)
        done.touch()
    return python


def main() -> int:
    """Return 0 if the tests pass on every version that is there."""
    found = {version: find(version) for version in VERSIONS}
    for version, interpreter in found.items():
        if interpreter is None:
            print(f"python {version}: skipped, not found on PATH or among pyenv's versions", flush=True)
    present = [(version, interpreter) for version, interpreter in found.items() if interpreter is not None]
    failed = False
    for number, (version, interpreter) in enumerate(present, 1):
        part = "1/1" if sys.argv[1:] == ["--all"] else f"{number}/{4 * len(present)}"
        print(f"python {version}: {interpreter}, part {part} of the tests", flush=True)
        python = prepare(interpreter, version)
        # what is skipped here for want of a server program runs on the main Python: the count says enough
        options = ("-q", "-rfE", "-m", "not soak and not once", "--part", part, "-n", "3", "--dist", "loadfile")
        command = [str(python), "-m", "pytest", *options, *TESTS]
        failed |= subprocess.run(command, cwd=ROOT, check=False).returncode != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
