"""Metrics over OTLP: the numbers of /metrics as OpenTelemetry's, so that both faces tell one truth.

Counters and histograms are cumulative from the start of the process. A collector that is away costs one attempt per
interval, and nothing waits for it.
"""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

from trueup_common.runtime.clock import real_now
from trueup_common.runtime.metrics import REGISTRY
from trueup_common.runtime.settings import Settings

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricsData

log = logging.getLogger("trueup.metering")

EXPORT_INTERVAL_SECONDS: Final = 15.0
EXPORT_SECONDS: Final = 3
METRICS_PATH: Final = "/v1/metrics"
TRACES_PATH: Final = "/v1/traces"

Point = tuple[Mapping[str, str], float]


def metrics_endpoint(text: str) -> str | None:
    """Where metrics are posted: beside the traces. None where only traces have an address."""
    text = text.rstrip("/")
    if urlsplit(text).path in ("", "/"):
        return text + METRICS_PATH
    return text.removesuffix(TRACES_PATH) + METRICS_PATH if text.endswith(TRACES_PATH) else None


async def export_metrics(settings: Settings, stop: asyncio.Event) -> None:
    """Export until `stop`, and once more at the end."""
    endpoint = metrics_endpoint(settings.otlp_endpoint)
    if endpoint is None:
        log.warning("metrics stay local: the endpoint is one of traces alone")
        await stop.wait()
        return
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    exporter = OTLPMetricExporter(endpoint=endpoint, timeout=EXPORT_SECONDS)
    resource = {"service.name": f"trueup-{settings.service}", "service.instance.id": settings.instance}
    begun = _nanoseconds()
    while not stop.is_set():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EXPORT_INTERVAL_SECONDS):
                await stop.wait()
        data = metrics_data(REGISTRY.collect(), resource, begun, _nanoseconds())
        await asyncio.to_thread(exporter.export, data)


def _nanoseconds() -> int:
    return int(real_now().timestamp() * 1_000_000_000)


def metrics_data(families: Iterable[Metric], resource: Mapping[str, str], begun: int, now: int) -> "MetricsData":
    """Families as OpenTelemetry has them."""
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    metrics = [made for family in families if (made := _metric(family, begun, now)) is not None]
    scope = ScopeMetrics(InstrumentationScope("trueup"), metrics, "")
    return MetricsData([ResourceMetrics(Resource.create(dict(resource)), [scope], "")])


def _metric(family: Metric, begun: int, now: int) -> Any:
    from opentelemetry.sdk.metrics import export

    def points(samples: Iterable[Sample], since: int) -> list[Any]:
        return [export.NumberDataPoint(dict(sample.labels), since, now, float(sample.value)) for sample in samples]

    data: Any
    if family.type == "counter":
        counted = [sample for sample in family.samples if sample.name.endswith("_total")]
        data = export.Sum(points(counted, begun), export.AggregationTemporality.CUMULATIVE, is_monotonic=True)
    elif family.type == "gauge":
        data = export.Gauge(points(family.samples, 0))
    elif family.type == "histogram":
        data = export.Histogram(_histograms(family, begun, now), export.AggregationTemporality.CUMULATIVE)
    else:
        return None
    return export.Metric(family.name, family.documentation, "", data) if data.data_points else None


def _histograms(family: Metric, begun: int, now: int) -> list[Any]:
    from opentelemetry.sdk.metrics.export import HistogramDataPoint

    found: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
    for sample in family.samples:
        labels = {name: value for name, value in sample.labels.items() if name != "le"}
        entry = found.setdefault(tuple(sorted(labels.items())), {"labels": labels, "buckets": [], "sum": 0, "count": 0})
        if sample.name.endswith("_bucket"):
            entry["buckets"].append((float(sample.labels["le"]), sample.value))
        elif sample.name.endswith(("_sum", "_count")):
            entry[sample.name.rpartition("_")[2]] = sample.value
    made: list[Any] = []
    unknown: Any = None  # a histogram of buckets does not know its extremes
    for entry in found.values():
        buckets = sorted(entry["buckets"])
        below = [0.0, *(count for _, count in buckets)]
        made.append(
            HistogramDataPoint(
                attributes=entry["labels"],
                start_time_unix_nano=begun,
                time_unix_nano=now,
                count=int(entry["count"]),
                sum=float(entry["sum"]),
                bucket_counts=[int(after - before) for before, after in itertools.pairwise(below)],
                explicit_bounds=[bound for bound, _ in buckets if bound != float("inf")],
                min=unknown,
                max=unknown,
            )
        )
    return made
