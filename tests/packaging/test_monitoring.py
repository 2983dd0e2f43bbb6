"""Dashboard and alerts ask for what the server really shows: a query of a metric that is not there stays silent."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from cache_server.errors import ERRORS
from cache_server.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "neff-cache.json").read_text())
RULES = yaml.safe_load((ROOT / "deploy" / "prometheus" / "neff-cache.rules.yaml").read_text())

# what Prometheus itself adds to each sample
SCRAPED = {"job", "instance"}


def _shown() -> dict[str, set[str]]:
    """Every sample's name, as a query has it, with its labels."""
    found = {}
    for metric in Metrics().described:
        labels = set(metric.labels) | SCRAPED
        if metric.kind == "histogram":
            found |= {
                f"{metric.name}_bucket": labels | {"le"},
                f"{metric.name}_sum": labels,
                f"{metric.name}_count": labels,
            }
        else:
            found[metric.name] = labels
    return found


def _queries() -> Iterator[tuple[str, str]]:
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield f"variable {variable['name']}", variable["query"]
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield f"panel {panel['title']}", target["expr"]
    for rule in _rules():
        yield f"alert {rule['alert']}", rule["expr"]


def _rules() -> list[dict[str, Any]]:
    return [rule for group in RULES["groups"] for rule in group["rules"]]


def test_every_query_asks_for_metrics_and_labels_that_the_server_shows() -> None:
    shown = _shown()
    asked = set()
    for where, query in _queries():
        used = re.findall(r"(neff_cache_\w+)(?:\{([^}]*)\})?", query)
        assert used or 'up{job="neff-cache"}' in query, where
        labels = set()
        for name, matchers in used:
            assert name in shown, f"{where}: {name}"
            asked.add(name)
            labels |= shown[name]
            assert set(re.findall(r"(\w+)(?:=|!=|=~|!~)\"", matchers)) <= shown[name], f"{where}: {name}{{{matchers}}}"
        for grouped in re.findall(r"by \(([^)]*)\)", query):
            assert {label.strip() for label in grouped.split(",")} <= labels, f"{where}: by ({grouped})"
        assert query.count("(") == query.count(")"), where
    assert len(asked) > 30


def test_a_query_of_a_cluster_wide_metric_never_adds_servers_up() -> None:
    cluster = {metric.name: metric for metric in Metrics().described if metric.scope == "cluster"}
    for where, query in _queries():
        for name in cluster.keys() & set(re.findall(r"neff_cache_\w+", query)):
            if query.startswith("label_values"):
                continue
            within = r"max(?: by \([^)]*\))? ?\((?:increase\()?" + name + r"\b"
            assert re.search(within, query), f"{where}: the largest of {name} is right, not the sum"


def test_legends_and_summaries_name_labels_that_are_left() -> None:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            grouped = re.findall(r"by \(([^)]*)\)", target["expr"])
            left = {label.strip() for label in grouped[0].split(",")} if grouped else SCRAPED | {"pool"}
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= left, panel["title"]
    for rule in _rules():
        grouped = re.findall(r"by \(([^)]*)\)", rule["expr"])
        left = {label.strip() for label in grouped[0].split(",")} if grouped else SCRAPED | {"pool"}
        said = " ".join(rule["annotations"].values())
        assert set(re.findall(r"\$labels\.(\w+)", said)) <= left, rule["alert"]


def test_errors_that_alerts_name_are_in_the_table() -> None:
    named = {
        name
        for _, query in _queries()
        for matcher in re.findall(r'errors_total\{[^}]*name=~?"([^"]+)"', query)
        for name in matcher.split("|")
    }
    assert {"unauthorized", "throttled", "signature_invalid"} <= named <= set(ERRORS)


@pytest.mark.parametrize("rule", _rules(), ids=lambda rule: str(rule["alert"]))
def test_every_alert_says_how_bad_it_is_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"page", "ticket"}
    assert set(rule["annotations"]) == {"summary", "description"}


def test_panels_do_not_lie_on_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
