"""What an import of the client brings along, inside other people's jobs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.fakes.waiting import HANG_SECONDS

_HEAVY = (
    "typer", "click", "rich", "torch", "numpy", "jaxlib", "fastapi", "starlette", "pydantic", "sqlalchemy", "boto3",
    "requests", "urllib3", "httpx", "asyncio", "zstandard",
)  # fmt: skip


def _loaded(statement: str) -> set[str]:
    # -S: what other packages start through .pth files is not ours
    code = f"import sys; sys.path[:0] = {sys.path!r}; {statement}; import json; print(json.dumps(list(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, timeout=HANG_SECONDS, check=True
    )
    return {name.partition(".")[0] for name in json.loads(done.stdout)}


@pytest.mark.parametrize(
    "statement", ["import client", "from client import Cache, KeyDocument", "import client.sources"]
)
def test_a_job_that_imports_the_client_gets_nothing_heavy_with_it(statement: str) -> None:
    assert _loaded(statement).isdisjoint(_HEAVY)


def test_an_import_of_the_package_alone_loads_next_to_nothing_of_it() -> None:
    code = "import client, sys; print(*[name for name in sys.modules if name.startswith('client.')])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_SECONDS, check=True
    )
    assert done.stdout.split() == ["client._version"]


def test_the_command_line_needs_neither_torch_nor_a_web_framework() -> None:
    found = _loaded("import client.cli.main")
    assert "typer" in found
    assert found.isdisjoint({"torch", "numpy", "jaxlib", "fastapi", "sqlalchemy", "boto3"})
