"""Whether the packages are there that the architectures come from; imports none of them, nor torch."""

from __future__ import annotations

from importlib.util import find_spec

NAMES = ("transformers", "torchvision", "timm")


def missing() -> list[str]:
    """Return which of the packages are not installed."""
    return [name for name in NAMES if find_spec(name) is None]
