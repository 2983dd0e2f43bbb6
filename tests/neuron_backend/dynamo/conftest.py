from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

import neuron_backend

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """Dynamo as in a new process, and no operator counted."""
    torch._dynamo.reset()
    neuron_backend.clear_fallback_ops()
    yield
    torch._dynamo.reset()
