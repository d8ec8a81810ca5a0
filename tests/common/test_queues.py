"""Numbers of a process: how far its loops are behind, labelled families, and the same numbers as OpenTelemetry's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from tests.common.test_telemetry import Delivered, MemoryStore, Poisonable, Silent, message
from tests.patience import PATIENCE_SECONDS

from trueup_common.contracts.topology import CONSUMERS
from trueup_common.runtime import queues
from trueup_common.runtime.bus import ConsumerSource
from trueup_common.runtime.crash import RealCrashPoints
from trueup_common.runtime.host import Loop
from trueup_common.runtime.metering import metrics_data, metrics_endpoint
from trueup_common.runtime.metrics import PROCESS, Family, exposition
from trueup_common.runtime.queues import Queues

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Broker:
    """Says how much is pending, or nothing."""

    def __init__(self, *counts: int | None) -> None:
        self.counts = list(counts)

    async def pending(self, consumer: Any) -> int | None:
        return self.counts.pop(0)


def loop_of(broker: Broker) -> Loop[Any]:
    return Loop(
        source=ConsumerSource(broker, CONSUMERS[0]),  # type: ignore[arg-type]
        store=MemoryStore(),
        handler=Poisonable(),
        publisher=Silent(),
        crash=RealCrashPoints(),
        schedule=Silent(),
    )


async def test_the_lag_of_a_loop_is_the_age_of_its_oldest_message() -> None:
    """Measured when a batch is claimed; nothing pending is no lag, a loop that stands still gets later with the clock.

    Requirements: V2
    """
    broker = Broker(0, 7, None)
    loop = loop_of(broker)
    watch = Queues(broker, [loop], [])  # type: ignore[arg-type]
    name = CONSUMERS[0].durable
    await watch.ask()
    assert watch.lags() == {name: 0.0}
    waited = message("m1")
    waited = type(waited)(**{**_fields(waited), "time": waited.time - timedelta(seconds=30)})
    await loop.process([Delivered(waited), Delivered(message("m2"))])
    assert loop.statistics.lag_seconds == 30
    assert watch.lags() == {name: 0.0}, "nothing waits any more"
    await watch.ask()
    first = watch.lags()[name]
    assert first >= 30 and watch.pending == {name: 7}
    loop.statistics.claimed_at_seconds = queues.monotonic() - 100
    assert watch.lags()[name] >= 130
    await watch.ask()
    assert watch.pending == {name: 7}, "what the broker does not say stays as it was known"


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


async def test_asking_ends_with_the_process() -> None:
    """The question is asked at once, and the wait for the next one ends with the stop."""
    broker = Broker(3)
    stop = asyncio.Event()
    watch = Queues(broker, [loop_of(broker)], [SimpleNamespace(name="t", ticks_count=2, failures_count=1)])  # type: ignore[arg-type, list-item]
    running = asyncio.create_task(watch.run(stop))
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not watch.pending:
            await asyncio.sleep(0)
        stop.set()
        await running
    families = {family.name: family.read() for family in watch.families()}
    assert families["trueup_queue_pending"] == {(CONSUMERS[0].durable,): 3}
    assert families["trueup_timer_ticks"] == {("t",): 2} and families["trueup_timer_failures"] == {("t",): 1}


@pytest.fixture
def readings() -> Any:
    """The process's numbers, put back afterwards."""
    kept = dict(PROCESS.readings)
    yield PROCESS
    PROCESS.readings = kept


def test_a_family_is_read_when_somebody_asks(readings: Any) -> None:
    """Labelled numbers in Prometheus' text, gauges and counters; a later family of a name replaces the earlier one.

    Requirements: V2
    """
    values = {("a",): 1.5, ('b"\n',): 2.0}
    readings.watch(Family("trueup_test_level", "A level", ("kind",), lambda: {("old",): 9.0}))
    readings.watch(
        Family("trueup_test_level", "A level", ("kind",), lambda: values),
        Family("trueup_test_seen", "Seen", ("kind",), lambda: values, counter=True),
    )
    values["c",] = 3.0
    families = {family.name: family for family in text_string_to_metric_families(exposition().decode())}
    level = {sample.labels["kind"]: sample.value for sample in families["trueup_test_level"].samples}
    assert level == {"a": 1.5, 'b"\n': 2.0, "c": 3.0} and families["trueup_test_level"].type == "gauge"
    assert {sample.name for sample in families["trueup_test_seen"].samples} == {"trueup_test_seen_total"}


class Truth(Collector):
    """A number that a process tells as true or false."""

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily("connected", "1 while connected", value=True)


def test_the_same_numbers_go_out_over_opentelemetry() -> None:
    """Counters are cumulative sums, gauges are gauges, histograms keep their buckets; labels become attributes.

    Requirements: V2
    """
    registry = CollectorRegistry()
    Counter("sent", "Sent", ["loop"], registry=registry).labels("x").inc(3)
    Gauge("level", "Level", registry=registry).set(-2.5)
    histogram = Histogram("seconds", "Seconds", ["route"], registry=registry, buckets=(0.1, 1))
    for value in (0.05, 0.5, 0.5, 9):
        histogram.labels("/a").observe(value)
    registry.register(Truth())
    Gauge("unused", "Nothing yet", ["kind"], registry=registry)
    data = metrics_data(registry.collect(), {"service.name": "trueup-test"}, 10, 20)
    (resource,) = data.resource_metrics
    assert resource.resource.attributes["service.name"] == "trueup-test"
    found: dict[str, Any] = {metric.name: metric.data for metric in resource.scope_metrics[0].metrics}
    assert set(found) == {"sent", "level", "seconds", "connected"}, "what has no value is not sent"
    assert len(encode_metrics(data).resource_metrics[0].scope_metrics[0].metrics) == 4
    (sent,) = found["sent"].data_points
    assert found["sent"].is_monotonic and found["sent"].aggregation_temporality.name == "CUMULATIVE"
    assert (sent.value, sent.attributes, sent.start_time_unix_nano, sent.time_unix_nano) == (3, {"loop": "x"}, 10, 20)
    assert [point.value for point in found["level"].data_points] == [-2.5]
    (seconds,) = found["seconds"].data_points
    assert seconds.attributes == {"route": "/a"} and seconds.count == 4 and seconds.sum == pytest.approx(10.05)
    assert seconds.bucket_counts == [1, 2, 1] and seconds.explicit_bounds == [0.1, 1.0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://collector:4318", "http://collector:4318/v1/metrics"),
        ("http://collector:4318/", "http://collector:4318/v1/metrics"),
        ("http://collector/otlp/v1/traces", "http://collector/otlp/v1/metrics"),
        ("http://collector/only-traces", None),
    ],
)
def test_metrics_are_posted_beside_the_traces(text: str, expected: str | None) -> None:
    """One setting names the collector."""
    assert metrics_endpoint(text) == expected
