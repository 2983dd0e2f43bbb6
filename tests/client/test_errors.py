"""Exceptions keep what they say on their way through other people's code."""

from __future__ import annotations

import importlib
import pickle
import pkgutil
from typing import TYPE_CHECKING

import client
from client import errors
from client.errors import CompileError, Failure, NeffCacheError

if TYPE_CHECKING:
    from collections.abc import Iterator


def _below(base: type[NeffCacheError]) -> Iterator[type[NeffCacheError]]:
    for found in base.__subclasses__():
        yield found
        yield from _below(found)


def test_who_catches_our_exceptions_finds_all_of_them_in_one_tree():
    for module in pkgutil.walk_packages(client.__path__, "client."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    ours = {found for found in _below(NeffCacheError) if found.__module__.startswith("client.")}
    assert len(ours) > 10
    assert errors.__doc__ is not None
    tree = errors.__doc__.partition("\n\n")[2].partition("A job never sees")[0]
    assert sorted(found.__name__ for found in ours if found.__name__ not in tree) == []


def test_every_public_name_is_where_the_package_says():
    assert {name for name in client.__all__ if getattr(client, name) is None} == set()
    assert set(client._HOMES) == set(client.__all__) - {"__version__"}


def test_a_compile_error_survives_a_process_pool():
    error = CompileError(Failure("diagnosis", "NCC_EVRF001: bad shape", "the log"), origin="host-7")
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.failure, copy.origin, str(copy)) == (error.failure, "host-7", str(error))
    assert str(error) == "NCC_EVRF001: bad shape (on host-7)\nthe log"
