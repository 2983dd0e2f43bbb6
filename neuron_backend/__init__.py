"""PyTorch on Neuron through the shared cache: device ``neuron`` and ``torch.compile(backend="neuron")``.

``import torch`` registers the device by itself. Import this package to hear why it did not, to register it where
``TORCH_DEVICE_BACKEND_AUTOLOAD=0`` forbids that, and for the functions below. It imports neither torch nor jaxlib.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neuron_backend.eager import clear_fallback_ops, get_fallback_ops
    from neuron_backend.prewarm.compile_only import compile_only
    from neuron_backend.programs import cache_stats, report

_HOMES = {
    "cache_stats": "neuron_backend.programs",
    "clear_fallback_ops": "neuron_backend.eager",
    "compile_only": "neuron_backend.prewarm.compile_only",
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


# False if it is torch's autoload that imports this package: nobody wants to hear of it then.
_asked_for = not _torch_is_being_imported()

if _asked_for and "torch" in sys.modules:
    from neuron_backend import _autoload

    if not _autoload.state.ran:
        _autoload.autoload()
