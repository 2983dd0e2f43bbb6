"""What ``import torch`` calls, through the entry point group ``torch.backends``, to register device ``neuron``.

torch re-raises whatever comes out of here, so that a mistake would break ``import torch`` itself for everybody who has
this package installed. Hence: only the standard library until the checks pass, nothing is built, torch's compiler is
never imported (torch is only half imported when this runs), and every exception becomes one warning.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

from neuron_backend.device import build
from neuron_backend.torch_private import unsupported

DISTRIBUTION = "neff-cache"
_PACKAGES = Path(__file__).resolve().parent.parent


@dataclass(slots=True)
class State:
    """The outcome of `autoload`: whether the device is there and, as a clause, why or why not."""

    registered: bool = False
    reason: str = "torch has not been imported"
    ran: bool = False


state = State()


def autoload() -> None:
    """Register device ``neuron`` with the torch that is there, or leave the reason in `state`. Never raises.

    Does nothing where the vendor's package is installed (the device is its own then), where jaxlib or the built library
    is missing, where another extension holds torch's slot, and where another module shadows our package ``client``.
    The reason is told only to a user who asked for this package by name.
    """
    state.ran = True
    try:
        vendor = vendor_package()
        obstacle = f"{vendor} is installed, and the device is its own" if vendor else _unsupported() or _obstacle()
        if obstacle is None:
            _register()
            state.registered, state.reason = True, "the device is registered"
            return
    except Exception as error:  # noqa: BLE001 - whatever it is, `import torch` must go on
        state.reason = f"its registration failed: {type(error).__name__}: {error}"
        _say(f"neff-cache: there is no device neuron, {state.reason}")
        return
    state.reason = obstacle
    if not getattr(sys.modules.get("neuron_backend"), "_asked_for", False):
        _forget()
    elif vendor is None:
        _say(f"neff-cache: there is no device neuron, {state.reason}")


def _forget() -> None:
    """Take this package out of ``sys.modules``, where torch's autoload put it: an import of the user's runs it anew."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "neuron_backend"]:
        del sys.modules[name]


def vendor_package() -> str | None:
    """Return the name of an installed distribution, other than ours, that declares itself the owner of ``neuron``."""
    installed = importlib.metadata.entry_points()
    for entry in installed.select(group="torch.backends", name="torch_neuronx"):
        return _distribution(entry) or "torch-neuronx"
    for entry in installed.select(group="torch_dynamo_backends", name="neuron"):
        owner = _distribution(entry)
        if owner is not None and owner != DISTRIBUTION:
            return owner
    return None


def shadowing_client() -> str | None:
    """Return the file or folder that ``import client`` finds instead of our own package; None if it finds ours."""
    try:
        spec = importlib.util.find_spec("client")
    except ValueError:  # a module of that name was put into sys.modules without a spec
        return "a module that was made at run time"
    if spec is None or (spec.origin and Path(spec.origin).resolve() == _PACKAGES / "client" / "__init__.py"):
        return None
    return spec.origin or next(iter(spec.submodule_search_locations or ()), "a module without a file")


def _say(sentence: str) -> None:
    """Warn once; where warnings are errors, write to standard error instead of raising."""
    try:
        warnings.warn(sentence, RuntimeWarning, stacklevel=3)
    except RuntimeWarning:
        sys.stderr.write(f"{sentence}\n")


def _distribution(entry: importlib.metadata.EntryPoint) -> str | None:
    return None if entry.dist is None else entry.dist.name.lower().replace("_", "-").replace(".", "-")


def _unsupported() -> str | None:
    locked = getattr(sys, "_is_gil_enabled", None)
    if locked is not None and not locked():
        return "this Python runs threads without the interpreter's lock, which the device's library relies on"
    version = build.torch_version()
    return None if version is None else unsupported(version)


def _obstacle() -> str | None:
    """Return why the device cannot be registered, or None. Reads metadata and files only."""
    torch = sys.modules.get("torch")
    if torch is None:
        return "torch has not been imported"
    if importlib.util.find_spec("jaxlib") is None:
        return "jaxlib is not installed: run `pip install 'neff-cache[torch]'`"
    if build.library_path() is None:
        return f"its library is not built for torch {build.torch_version()}: run `{build.COMMAND}`"
    shadow = shadowing_client()
    if shadow is not None:
        return f"`import client` finds {shadow}, not neff-cache's own package: rename it, or start Python with -P"
    holder = torch._C._get_privateuse1_backend_name()  # noqa: SLF001 - the only way to ask
    if holder != "privateuseone":
        return f"another extension, {holder!r}, holds the one slot that torch has for devices"
    return None


def _register() -> None:
    from neuron_backend.device.register import register  # noqa: PLC0415 - imports torch: only once the checks passed

    library = build.library_path()
    if library is None:
        raise FileNotFoundError("the device library was removed while it was being loaded")
    register(library)
