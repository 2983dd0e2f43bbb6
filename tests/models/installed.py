"""Whether the packages are there that the architectures come from; imports none of them, nor torch.

``make setup`` puts torchvision and timm into a folder of their own, which this module adds to where Python looks: the
package of torchvision may be built for CUDA, and a user's imports find it, and fail, if it stands beside a CPU torch.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

FOLDER = Path(sys.prefix) / "models"
if FOLDER.is_dir() and str(FOLDER) not in sys.path:
    sys.path.append(str(FOLDER))

NAMES = ("transformers", "torchvision", "timm")


def missing() -> list[str]:
    """Return which of the packages are not installed."""
    return [name for name in NAMES if find_spec(name) is None]
