"""What ``neff-cache doctor`` says about the PyTorch backend.

Reads metadata and files, and imports neither torch nor jaxlib.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from typing import TYPE_CHECKING, Final

from client.doctor.base import Finding, Row, note, ok, problem
from client.environment import is_neuron_host
from neuron_backend import _autoload
from neuron_backend.device import build

if TYPE_CHECKING:
    from collections.abc import Iterator

    from client.doctor.base import Surroundings

_INSTALL = "run `pip install 'neff-cache[torch]'`"


def check_torch(surroundings: Surroundings) -> Iterator[Finding]:
    """Say which torch and jaxlib there are, and whether the device library fits them."""
    version = build.torch_version()
    if version is None:
        yield note("torch is not installed: nothing is compiled here through PyTorch", "install torch if jobs need it")
        return
    yield ok(f"torch {version}")
    try:
        yield ok(f"jaxlib {importlib.metadata.version('jaxlib')}")
    except importlib.metadata.PackageNotFoundError:
        yield problem("jaxlib is not installed: there is no device neuron and no backend neuron", _INSTALL)
    library = build.library_path(surroundings.environ)
    if library is None:
        yield problem(f"the device library is not built for torch {version}", f"run `{build.COMMAND}`")
    else:
        yield ok(f"device library {library}")
    if surroundings.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") == "0":
        yield note(
            "TORCH_DEVICE_BACKEND_AUTOLOAD=0: torch registers no device by itself", "`import neuron_backend` does"
        )


def check_vendor(surroundings: Surroundings) -> Iterator[Finding]:
    """Say whose device ``neuron`` is, and which compiler compiles for it."""
    vendor = _autoload.vendor_package()
    if vendor is not None:
        yield note(
            f"{vendor} is installed: device and backend neuron are its own",
            "the launcher carries the cache then: `neff-cache launcher status`",
        )
    else:
        yield ok("device and backend neuron are neff-cache's own")
    asked = surroundings.environ.get("NEURON_BACKEND_COMPILER", "").strip()
    host = is_neuron_host()
    if (
        host
        and importlib.util.find_spec("neuronxcc") is None
        and not surroundings.environ.get("NEURON_CACHE_COMPILER", "").strip()
    ):
        yield problem(
            "this is a Neuron instance, and its compiler's package neuronxcc is not installed in this Python",
            "install neuronx-cc, or name its program in NEURON_CACHE_COMPILER",
        )
    elif not host and not asked:
        yield note("this is no Neuron instance: programs are compiled by the stand-in for the host's CPU")


CHECKS: Final[tuple[Row, ...]] = (Row("torch", check_torch), Row("backend", check_vendor))
