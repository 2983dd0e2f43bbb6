from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import neuron_backend
from neuron_backend import _autoload, programs
from neuron_backend.eager import dispatch, kernels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give the programs of this session a node tier of their own, and no shared cache."""
    assert _autoload.state.registered, _autoload.state.reason
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEURON_CACHE_NODE_DIR", str(tmp_path_factory.mktemp("node")))
        patch.delenv("NEURON_CACHE_URL", raising=False)
        yield


@pytest.fixture(autouse=True)
def _fresh_account() -> None:
    neuron_backend.clear_fallback_ops()
    torch.manual_seed(0)


@pytest.fixture
def programs_made() -> Callable[[], int]:
    """Return a function that says how many programs were loaded since the test began."""
    before = programs.current().report()["loaded"]
    return lambda: int(programs.current().report()["loaded"]) - before


@pytest.fixture
def python_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that grows by the name of every operator that is carried out in Python."""
    seen: list[str] = []

    def counted(overload: Any, args: Any, kwargs: Any) -> Any:
        seen.append(str(overload))
        return dispatch.dispatch(overload, args, kwargs)

    monkeypatch.setattr(kernels, "_dispatch", lambda: counted)
    return seen
