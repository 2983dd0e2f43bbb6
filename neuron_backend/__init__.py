"""PyTorch on Neuron through the shared cache: device ``neuron`` and ``torch.compile(backend="neuron")``.

``import torch`` registers the device by itself. Import this package to hear why it did not, to register it where
``TORCH_DEVICE_BACKEND_AUTOLOAD=0`` forbids that, and for the functions below. It imports neither torch nor jaxlib.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neuron_backend.eager import clear_fallback_ops, get_fallback_ops
    from neuron_backend.programs import cache_stats, compile_only, report

_HOMES = {
    "cache_stats": "neuron_backend.programs",
    "clear_fallback_ops": "neuron_backend.eager",
    "compile_only": "neuron_backend.programs",
    "get_fallback_ops": "neuron_backend.eager",
    "report": "neuron_backend.programs",
}

__all__ = ["cache_stats", "clear_fallback_ops", "compile_only", "get_fallback_ops", "report"]


def __getattr__(name: str) -> Any:
    """Import a public name from its module at first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'neuron_backend' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def _torch_is_being_imported() -> bool:
    return getattr(getattr(sys.modules.get("torch"), "__spec__", None), "_initializing", False)


# torch's autoload imports this package without anybody having asked for it; then nothing is to be said.
_asked_for = not _torch_is_being_imported()


def _after_autoload() -> None:
    """Say why there is no device, to a user who asked for this package; called when `_autoload` has run."""
    from neuron_backend import _autoload  # noqa: PLC0415 - it imports this package

    if _autoload.state.registered:
        return
    if not _asked_for:
        # The user's own import, should there be one, is to run this file again and hear the reason.
        sys.modules.pop("neuron_backend", None)
    elif _autoload.state.tell:
        _autoload.state.tell = False
        _autoload.say(f"neff-cache: there is no device neuron, {_autoload.state.reason}")


if _asked_for and "torch" in sys.modules:
    from neuron_backend import _autoload

    if _autoload.state.ran:
        _after_autoload()
    else:
        _autoload.autoload()
