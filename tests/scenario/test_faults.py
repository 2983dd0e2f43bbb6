"""What a shared cache that is gone, deaf, slow or wrong costs a job: seconds, never a result.

``pytest -s -m soak tests/scenario/test_faults.py`` prints the seconds lost, with the limits that jobs have.
"""

from __future__ import annotations

import logging
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from client import remote
from client.artifact import Compiled
from client.cache import Cache
from client.settings import Settings
from client.transports import patience
from client.transports.http import HttpTransport
from client.transports.limits import DEFAULT_LIMITS, Limits
from tests.client.programs import build, document, entry_of
from tests.client.transports.raw_server import RawServer
from tests.support.faulty_server import FAULTS, faulty_url, rightly

if TYPE_CHECKING:
    from pathlib import Path

OPERATIONS = {"lookup": "fetch", "lease": "acquire", "fetch": "fetch", "publish": "publish"}
"""Where the fault is, and the call of the transport that meets it; a look-up finds nothing, a fetch finds a program."""
LIMIT = 12.0
"""Seconds that a job may lose, as documented."""
SLACK = 3.0
QUICK = Limits(connect=0.2, answer=0.3, stall=0.3, without_lease=1.0, upload=1.0)
PROGRAMS = 6


class _OneCallElsewhere:
    """A transport one of whose calls goes to another server."""

    def __init__(self, good: HttpTransport, bad: HttpTransport, call: str) -> None:
        self._good, self._bad, self._call = good, bad, call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bad if name == self._call else self._good, name)


def seconds_lost(fault: str, operation: str, limits: Limits, node: Path) -> float:
    """Run a job of several programs against a shared cache with a fault, and check what it got."""
    neff = build(200_000)
    documents = [document(f"program {number}") for number in range(PROGRAMS)]
    stored = {}
    if operation == "fetch":
        for each in documents:
            entry = entry_of(each, {"model.neff": neff})
            stored[each.key] = (entry, neff)
    script = rightly(stored)
    with ExitStack() as stack:
        good = stack.enter_context(RawServer(script))
        bad = stack.enter_context(faulty_url(fault, script))
        transports = [HttpTransport(url, "default", {}, limits=limits) for url in (good.url, bad)]
        transport = _OneCallElsewhere(*transports, OPERATIONS[operation])
        cache = Cache(Settings(node_dir=node), open_transport=lambda: transport)
        start = time.monotonic()
        for each in documents:
            mine = build(200_000)
            made = cache.get_or_compile(each, lambda mine=mine: Compiled({"model.neff": mine}, 600.0))
            assert made.neff in {mine, neff}
            assert cache.get_or_compile(each, pytest.fail).neff == made.neff
        cache.close()
        lost = time.monotonic() - start
        for each in transports:
            each.close()
    return lost


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.share(16)
def test_no_fault_of_the_shared_cache_costs_a_result(fault, operation, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(remote, "BUDGET", 0.6)
    monkeypatch.setattr(remote, "LOST_LIMIT", 0.35)
    monkeypatch.setattr(patience, "LEAST_FETCH", 0.3)
    assert seconds_lost(fault, operation, QUICK, tmp_path / "node") < LIMIT
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == len(set(warnings)) <= 2


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_seconds_that_each_fault_costs_a_job(tmp_path):
    cases = [(fault, operation) for fault in FAULTS for operation in OPERATIONS]

    def run(case: tuple[str, str]) -> float:
        return seconds_lost(*case, DEFAULT_LIMITS, tmp_path / "-".join(case).replace("/", "-"))

    with ThreadPoolExecutor(16) as pool:
        lost = dict(zip(cases, pool.map(run, cases), strict=True))
    lines = [f"{'seconds lost':20}" + "".join(f"{operation:>9}" for operation in OPERATIONS)]
    lines += [f"{fault:20}" + "".join(f"{lost[fault, operation]:9.2f}" for operation in OPERATIONS) for fault in FAULTS]
    sys.stdout.write("\n" + "\n".join(lines) + "\n")
    assert {case: seconds for case, seconds in lost.items() if seconds > LIMIT + SLACK} == {}


def test_a_job_that_must_not_compile_waits_for_what_comes_slowly(tmp_path, monkeypatch):
    monkeypatch.setattr(patience, "LEAST_FETCH", 0.2)
    theirs = build(500)
    entry = entry_of(document(), {"model.neff": theirs})
    with faulty_url("1 kB/s", rightly({document().key: (entry, theirs)})) as url:
        transport = HttpTransport(url, "default", {})
        cache = Cache(Settings(node_dir=tmp_path / "node", on_miss="fail"), open_transport=lambda: transport)
        assert cache.get_or_compile(document(), pytest.fail).neff == theirs
        cache.close()


def test_a_program_that_compiles_faster_than_it_comes_is_compiled(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(patience, "LEAST_FETCH", 0.2)
    monkeypatch.setattr(patience, "WINDOW", 0.1)
    theirs, mine = build(200_000), build()
    quick = document()
    entry = entry_of(quick, {"model.neff": theirs})
    script = rightly({quick.key: (entry, theirs)})
    with faulty_url("1 kB/s", script) as url:
        transport = HttpTransport(url, "default", {})
        cache = Cache(Settings(node_dir=tmp_path / "node"), open_transport=lambda: transport)
        made = cache.get_or_compile(quick, lambda: Compiled({"model.neff": mine}, 1.0))
        assert (made.source, made.neff) == ("compile", mine)
        cache.close()
    assert caplog.text.count("more slowly than it compiles") == 1
