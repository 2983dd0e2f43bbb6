"""``python -m cache_server.metrics_reference [--write]``: ``docs/metrics.md``, made from the metrics themselves.

A test compares the document with what this prints, and another one sees every metric of it move on a running server.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cache_server.metric_projects import MOST_PROJECTS, OTHER
from cache_server.metrics import Metrics
from client.cli.output import print_or_write

if TYPE_CHECKING:
    from cache_server.metric_kinds import Described

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "metrics.md"

_HEAD = f"""# Metrics

Made by `python -m cache_server.metrics_reference --write`; tests keep it current and see every metric here move.

`GET /metrics` answers Prometheus' text format to a token with scope `metrics` (or `admin`):
`neff-cache token create prometheus --grant metrics`. Alert rules are in
[deploy/prometheus](../deploy/prometheus/neff-cache.rules.yaml), a Grafana dashboard in
[deploy/grafana](../deploy/grafana/neff-cache.json).

## How to add up several servers

Metrics of scope *process* are each server's own share and begin anew when it does: `sum(rate(…))` is right over any
number of servers and restarts. Those of scope *cluster* are read at the scrape from the database that all servers
share, and every server shows the same figure: take `max by (project, kind) (…)`, never a sum.

The counters `neff_cache_client_…` are of that second sort. They are totals of what jobs report at exit (hits on disks
that no server sees, compile seconds saved), kept in the database: neither a restart nor a new server sets them back, so
`max by (project, kind) (neff_cache_client_saved_seconds_total)` is all that was ever saved. A job that is killed
reports nothing. An index that was rebuilt from the store begins them at 0; `rate` and `increase` know what that means.

If the database does not answer, its figures are left out of the scrape: `neff_cache_readable{{source="database"}}` is
0; the rest is as always.

## How many series there are

Labels have values from closed sets, but for `project`: the first {MOST_PROJECTS} projects that hold entries
(`NEFF_CACHE_METRICS_PROJECTS`) have a label of their own, all others are `{OTHER}`. Projects that are only reported on
may take half of those labels; reports of projects without a label are not shown. Names that callers make up are no
labels. `route` is the template of an address, `none` for one that leads nowhere.

What was refused is in `neff_cache_errors_total`, by the error's name: `unauthorized` (no token, or one that is unknown,
expired or revoked), `forbidden`, `not_found` (a plain miss too), `throttled`, `too_many_leases`, `signature_required`,
`signature_invalid`, `quota_exceeded`, `store_full`, `short_body` (an upload that broke off) and so on.

Histograms have `_bucket`, `_sum` and `_count`. The metrics `process_…` and `python_gc_…` are those of Prometheus'
own client library.

## All metrics
"""


def reference() -> str:
    """Return the document."""
    rows = [
        f"| `{found.name}` | {found.kind} | {', '.join(f'`{label}`' for label in found.labels)} | {found.scope} "
        f"| {_cell(found)} | `{found.source}` |\n"
        for found in Metrics().described
    ]
    head = "\n| name | type | labels | scope | meaning | from |\n|---|---|---|---|---|---|\n"
    return _HEAD + head + "".join(rows)


def _cell(found: Described) -> str:
    return found.meaning.replace("|", "\\|")


def main() -> None:
    """Print the document, or write it with ``--write``."""
    print_or_write(DOCUMENT, reference())


if __name__ == "__main__":
    main()
