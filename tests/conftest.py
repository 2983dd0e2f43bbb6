"""What holds for every test: nothing of the user's settings comes in, nothing of his caches is touched."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

# A run that was started in the background ignores these, and so would every process that a test interrupts.
for _signal in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_signal) is signal.SIG_IGN:
        signal.signal(_signal, signal.default_int_handler if _signal is signal.SIGINT else signal.SIG_DFL)

_OURS = ("NEURON_", "NEFF_CACHE_", "XLA_", "NKI_", "AWS_")


@pytest.fixture(scope="session", autouse=True)
def _own_surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give the session empty folders of its own for everything that is found through the environment."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(_OURS)]:
            patch.delenv(name)
        for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
            patch.setenv(name, str(home / name.lower()))
        patch.setenv("NEURON_CACHE_NODE_DIR", str(home / "node"))
        yield
