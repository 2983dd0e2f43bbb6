"""Metrics that describe themselves: whoever makes one says what it means, and the reference is made from that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from prometheus_client import Metric

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]
Scope: TypeAlias = Literal["process", "cluster"]

PREFIX = "neff_cache_"


class Described(NamedTuple):
    """One metric. ``name`` as a query has it, ``source``: the module below ``cache_server`` that its figures are from.

    ``scope``: ``process``, each server counts its own share and a query adds them up; ``cluster``, each server shows
    the same figure, out of what all of them share, and a query takes the largest.
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    meaning: str
    source: str
    scope: Scope


class Shown:
    """Figures that are not counted here but read at a scrape, from where all servers keep them.

    They are replaced as a whole, so that a series whose subject is gone goes too, and a scrape at the same moment sees
    the old figures or the new ones.
    """

    def __init__(self, described: Described) -> None:
        self._described = described
        self._samples: Mapping[tuple[str, ...], float] = {}

    def show(self, samples: Mapping[tuple[str, ...], float]) -> None:
        """Show these figures, by their labels' values, in place of the last ones."""
        self._samples = samples

    def show_one(self, value: float | None) -> None:
        """Show the figure of a metric without labels; None shows nothing."""
        self._samples = {} if value is None else {(): value}

    def collect(self) -> Iterable[Metric]:
        """Return the figures as the registry asks for them."""
        name, kind, labels, meaning, *_ = self._described
        family: CounterMetricFamily | GaugeMetricFamily = (
            CounterMetricFamily(name, meaning, labels=labels)
            if kind == "counter"
            else GaugeMetricFamily(name, meaning, labels=labels)
        )
        for values, figure in sorted(self._samples.items()):
            family.add_metric(values, figure)
        return [family]


class Catalogue:
    """Makes metrics in a registry of their own, and remembers what each of them is."""

    def __init__(self) -> None:
        # one for each application, so that two of them in a process do not mix
        self.registry = CollectorRegistry()
        self.described: list[Described] = []

    def _describe(
        self, name: str, kind: Kind, labels: tuple[str, ...], meaning: str, *, source: str, scope: Scope = "process"
    ) -> Described:
        described = Described(PREFIX + name, kind, labels, meaning, source, scope)
        self.described.append(described)
        return described

    def counter(self, name: str, meaning: str, *labels: str, source: str) -> Counter:
        """Return a counter, whose ``name`` ends in ``_total``."""
        found = self._describe(name, "counter", labels, meaning, source=source)
        return Counter(found.name, meaning, labels, registry=self.registry)

    def gauge(self, name: str, meaning: str, *labels: str, source: str) -> Gauge:
        """Return a gauge."""
        found = self._describe(name, "gauge", labels, meaning, source=source)
        return Gauge(found.name, meaning, labels, registry=self.registry)

    def histogram(self, name: str, meaning: str, *labels: str, source: str, buckets: Sequence[float]) -> Histogram:
        """Return a histogram of seconds."""
        found = self._describe(name, "histogram", labels, meaning, source=source)
        return Histogram(found.name, meaning, labels, buckets=buckets, registry=self.registry)

    def shown(self, name: str, kind: Kind, meaning: str, *labels: str, source: str) -> Shown:
        """Return a cluster-wide metric whose figures are read at a scrape."""
        shown = Shown(self._describe(name, kind, labels, meaning, source=source, scope="cluster"))
        self.registry.register(shown)
        return shown
