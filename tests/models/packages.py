"""transformers, torchvision and timm, without the network. Import what is needed of them after this module."""

from __future__ import annotations

import os
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch

from tests.models import installed  # noqa: F401 - makes torchvision and timm findable


def _declare_torchvision() -> None:
    """Let torchvision be imported beside a CPU build of torch.

    Its package is built for CUDA, so its library cannot be loaded here; then its import fails at the operators for
    which it registers shapes. Those are for detection: no network of ours calls them.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            import torchvision  # noqa: F401, PLC0415 - to see whether it can be
        except RuntimeError:
            for name in ("nms", "qnms"):
                torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float limit) -> Tensor")


_declare_torchvision()
