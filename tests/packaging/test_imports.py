"""What a user imports beside neff-cache works in the environment that ``make setup`` makes."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import packages_distributions, requires

import pytest
from packaging.requirements import Requirement

pytestmark = pytest.mark.once

_IMPORT = """
import importlib, sys, traceback
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except Exception:
        print(name, traceback.format_exc().splitlines()[-1])
"""


def required() -> list[str]:
    """Return the importable names of every distribution that this project asks for, in any extra."""
    wanted = {Requirement(each).name.lower().replace("_", "-") for each in requires("neff-cache") or ()}
    return sorted(
        name
        for name, distributions in packages_distributions().items()
        if name.isidentifier() and not name.startswith("_") and wanted & {each.lower() for each in distributions}
    )


def test_every_package_we_bring_along_can_be_imported_beside_our_torch() -> None:
    names = required()
    assert {"transformers", "jaxlib", "fastapi"} <= set(names)
    child = subprocess.run(
        [sys.executable, "-c", _IMPORT, *names], capture_output=True, text=True, check=True, timeout=100
    )
    assert child.stdout == ""


def test_a_users_model_can_be_imported_from_transformers() -> None:
    # transformers imports torchvision if it is found; one built for CUDA cannot be imported beside the CPU build
    program = "from transformers import LlamaForCausalLM, ViTForImageClassification, CLIPModel"
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=100)
    assert child.returncode == 0, child.stderr[-2000:]
