"""What holds for every test: nothing of the user's settings comes in, nothing of his caches is touched."""

from __future__ import annotations

import hashlib
import os
import signal
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import Iterator

# A run that was started in the background ignores these, and so would every process that a test interrupts.
for _signal in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_signal) is signal.SIG_IGN:
        signal.signal(_signal, signal.default_int_handler if _signal is signal.SIGINT else signal.SIG_DFL)

# no test fails by the clock
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", default="1/1", help="K/N: the K-th of N equal parts of the tests, by their names")


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep what ``--part`` names; leave to ``make soak`` what is over a test's ``share`` of its parameter sets.

    Both depend on names alone: every run has the same.
    """
    sets = defaultdict(list)
    for item in items:
        if item.get_closest_marker("share"):
            sets[item.nodeid.partition("[")[0]].append(item)
    for alike in sets.values():
        # first those that `make test` may hold at all
        alike.sort(key=lambda item: (item.get_closest_marker("soak") is not None, _digest(item)))
        mark = alike[0].get_closest_marker("share")
        assert mark is not None
        for item in alike[mark.args[0] :]:
            item.add_marker(pytest.mark.soak)
    part, parts = map(int, config.getoption("--part").split("/"))
    others = [
        item
        for item in items
        if int.from_bytes(_digest(item)) % parts != part - 1 and not item.get_closest_marker("each")
    ]
    if others:
        config.hook.pytest_deselected(items=others)
        left_out = set(others)
        items[:] = [item for item in items if item not in left_out]


def _digest(item: pytest.Item) -> bytes:
    return hashlib.sha256(item.nodeid.encode()).digest()


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
