"""Metrics of one process, for /metrics: counting is an addition in memory, and text is made when somebody asks.

Labels come from closed lists (loops, systems, states, routes), never a tenant, a person, an id or a client's own words.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from trueup_common.runtime.host import LoopStatistics

Labels = tuple[str, ...]

LOOP_COUNTS: Final = {
    "batches": "Batches that a loop settled",
    "messages": "Messages that a loop settled",
    "duplicates": "Messages that the inbox knew already",
    "commits": "Transactions that a loop committed",
    "busy": "Transactions repeated because the store was busy",
    "presumptions": "Batches that presumed what was not so and ran again",
    "failures": "Messages that failed alone",
    "quarantined": "Messages put into quarantine",
}
METHODS: Final = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})


class Tally:
    """Counts by labels. Stores count what they committed (`SqlTransaction.count`), so repetitions are not counted."""

    def __init__(self, name: str, documentation: str, labels: Labels) -> None:
        self.name = name
        self.documentation = documentation
        self.labels = labels
        self.counts: dict[Labels, int] = {}
        PROCESS.tallies.append(self)

    def add(self, values: Labels, count: int = 1) -> None:
        """Count."""
        self.counts[values] = self.counts.get(values, 0) + count


@dataclass(frozen=True, slots=True)
class Reading:
    """A number that is read when somebody asks. `counter` where it only grows."""

    name: str
    documentation: str
    read: Callable[[], float]
    counter: bool = False


@dataclass(frozen=True, slots=True)
class Family:
    """Numbers by labels that are read together when somebody asks. `counter` where they only grow."""

    name: str
    documentation: str
    labels: Labels
    read: Callable[[], Mapping[Labels, float]]
    counter: bool = False


class ProcessNumbers(Collector):
    """Everything that a process counts by itself anyway, turned into metrics at the time of a scrape."""

    def __init__(self) -> None:
        self.loops: dict[str, LoopStatistics] = {}
        self.tallies: list[Tally] = []
        self.readings: dict[str, Reading | Family] = {}

    def watch(self, *readings: Reading | Family) -> None:
        """Take in numbers; a later reading of the same name replaces the earlier one."""
        self.readings.update((reading.name, reading) for reading in readings)

    def describe(self) -> Iterable[Metric]:
        """Nothing in advance: names are known when they are collected."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """All families."""
        for field, documentation in LOOP_COUNTS.items():
            family = CounterMetricFamily(f"trueup_loop_{field}", documentation, labels=("loop",))
            for loop, statistics in self.loops.items():
                family.add_metric((loop,), getattr(statistics, f"{field}_count"))
            yield family
        for tally in self.tallies:
            family = CounterMetricFamily(tally.name, tally.documentation, labels=tally.labels)
            for values, count in tally.counts.items():
                family.add_metric(values, count)
            yield family
        for reading in self.readings.values():
            kind = CounterMetricFamily if reading.counter else GaugeMetricFamily
            if isinstance(reading, Reading):
                yield kind(reading.name, reading.documentation, value=reading.read())
                continue
            labelled = kind(reading.name, reading.documentation, labels=reading.labels)
            for values, value in reading.read().items():
                labelled.add_metric(values, value)
            yield labelled


PROCESS: Final = ProcessNumbers()
REGISTRY: Final = CollectorRegistry()
REGISTRY.register(PROCESS)
ProcessCollector(registry=REGISTRY)
OUTBOX_UNSENT: Final = Gauge("trueup_outbox_unsent", "Outbox rows that the relay found unsent", registry=REGISTRY)
HTTP_SECONDS: Final = Histogram(
    "trueup_http_seconds",
    "Seconds per HTTP request",
    ["method", "route", "status"],
    registry=REGISTRY,
    buckets=(0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 30),
)
TIMER_LATENESS_SECONDS: Final = Histogram(
    "trueup_timer_lateness_seconds",
    "How much later than due a timer fired (business time)",
    ["kind"],
    registry=REGISTRY,
    buckets=(0.5, 1, 2, 5, 10, 30, 60, 300, 900, 3600),
)
_HTTP: Final[dict[tuple[str, str, int], Histogram]] = {}


def observe_http(method: str, route: str, status: int, seconds: float) -> None:
    """One answered request. `route` is a template; a method that HTTP does not list counts as `other`."""
    key = (method, route, status)
    histogram = _HTTP.get(key)
    if histogram is None:
        known = method if method in METHODS else "other"
        histogram = HTTP_SECONDS.labels(known, route, str(status))
        if known == method:
            _HTTP[key] = histogram
    histogram.observe(seconds)


def exposition() -> bytes:
    """All metrics in Prometheus' text format."""
    return generate_latest(REGISTRY)
