"""What a cache server that lies costs a job: seconds and memory that are bounded, never a result.

``pytest -s -m soak tests/scenario/test_lying_servers.py`` prints both for every lie.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.client.transports.raw_server import RawServer
from tests.support.lying_server import LIES, lying

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.once

HANGS = 120
"""Seconds after which a job is taken to wait for ever."""
MOST_BYTES = 256 << 20
LIMIT, SLACK = 12.0, 3.0
"""Seconds that a job may lose, as documented, and what a busy machine may add."""
BELIEVED = {"failed, for 60 s": 60.0}
"""Lies that an honest server tells too, and seconds for which a job believes them."""
LONG = {
    "trailers without end",
    "a byte now and then",
    "no answer",
    "a circle of redirects, each in time",
    "promises without end",
    "no answer to a lease",
    "wait, for nobody",
    "wait, for a lease that is over",
    "wait, for 30 million years",
    "wait, generations going backward",
    "busy, for a year",
    "a store that stands still behind it",
    *BELIEVED,
}
"""What has a job wait for as long as it can; the others end at once."""


class Cost(NamedTuple):
    seconds: float
    size: int


def cost_of(lie: str, node: Path) -> Cost:
    """Run a job, whose results are checked there, against the server that tells ``lie``."""
    with RawServer(lying(lie)) as server:
        command = [sys.executable, "-m", "tests.support.lied_to", server.url, str(node)]
        ended = subprocess.run(command, capture_output=True, timeout=HANGS, check=False)
    assert ended.returncode == 0, ended.stderr.decode()
    value = json.loads(ended.stdout)
    return Cost(value["seconds"], value["bytes"])


@pytest.mark.parametrize("lie", [lie for lie in LIES if lie not in LONG])
@pytest.mark.share(5)
def test_no_lie_costs_a_job_its_result_or_its_memory(lie: str, tmp_path: Path) -> None:
    assert cost_of(lie, tmp_path / "node").size < MOST_BYTES


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_seconds_and_memory_that_each_lie_costs_a_job(tmp_path: Path) -> None:
    costs = {lie: cost_of(lie, tmp_path / str(number)) for number, lie in enumerate(LIES)}
    lines = [f"{lie:40}{cost.seconds:7.1f} s{cost.size >> 20:6} MiB" for lie, cost in costs.items()]
    sys.stdout.write("\n" + "\n".join(lines) + "\n")
    assert {lie: cost for lie, cost in costs.items() if cost.size >= MOST_BYTES} == {}
    over = {lie: cost for lie, cost in costs.items() if cost.seconds > BELIEVED.get(lie, LIMIT) + SLACK}
    assert over == {}
