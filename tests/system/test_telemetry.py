"""Telemetry of a whole plane: one trace through every service, numbers that show the work, logs that hold no secret."""

import asyncio
import json
import re
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import yaml
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from prometheus_client.parser import text_string_to_metric_families

from tests.system.plane import Answer, Plane, eventually, http
from trueup_common.contracts.envelope import REQUIRED, Message, headers_of
from trueup_common.contracts.topology import SERVICES, command_subject
from trueup_common.runtime.bus import connect_admin
from trueup_common.runtime.clock import real_now
from trueup_gateway.levels import SHIPPED

GIVEN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
MARKER = "marker-7c1f0e5d"


@dataclass
class Collector:
    """Takes OTLP over HTTP and keeps every span with the service that made it."""

    spans: list[tuple[str, Span]] = field(default_factory=list)
    metrics: dict[tuple[str, str], Metric] = field(default_factory=dict)
    """The newest of each (service, name)."""
    raw: list[bytes] = field(default_factory=list)
    url: str = ""

    def take(self, path: str, body: bytes) -> None:
        self.raw.append(body)
        if path == "/v1/metrics":
            self._take_metrics(ExportMetricsServiceRequest.FromString(body))
            return
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            names = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
            self.spans += [(names["service.name"], span) for scope in resource.scope_spans for span in scope.spans]

    def _take_metrics(self, request: ExportMetricsServiceRequest) -> None:
        for resource in request.resource_metrics:
            names = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
            for scope in resource.scope_metrics:
                self.metrics.update(((names["service.name"], metric.name), metric) for metric in scope.metrics)

    def trace(self, trace_id: str) -> list[tuple[str, Span]]:
        return [(service, span) for service, span in self.spans if span.trace_id.hex() == trace_id]


@dataclass
class Watched:
    """A plane that traces everything, and where its spans arrive."""

    plane: Plane
    collector: Collector


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.headers.get("content-encoding") is None
            collector.take(self.path, self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    collector.url = f"http://127.0.0.1:{server.server_port}"
    folder = tmp_path_factory.mktemp("traced")
    own = folder / "levels.yaml"
    own.write_text(SHIPPED.read_text().replace("target: 0.95", "target: 0.5"))
    environment = {"TRUEUP_OTLP_ENDPOINT": collector.url, "TRUEUP_TRACE_RATIO": "1", "TRUEUP_SLO": str(own)}
    plane = Plane(folder / "plane", environment=environment).start()
    yield Watched(plane, collector)
    plane.stop()
    server.shutdown()


def attributes_of(span: Span) -> dict[str, Any]:
    return {pair.key: pair.value.string_value or pair.value.int_value for pair in span.attributes}


def submit(plane: Plane, slug: str, headers: dict[str, str], **payload: Any) -> tuple[Answer, str]:
    """One draft with headers of its own; answers with the capability that was used."""
    capability = plane.capability("wordpress.create_draft", "post")
    body = {
        "command_type": "wordpress.create_draft",
        "target": {"system": "wordpress", "resource": "post"},
        "payload": {"title": f"Title {slug}", "content": f"<p>{slug}</p>", "slug": slug, **payload},
    }
    sent = {"authorization": f"Bearer {capability}", "idempotency-key": f'"{slug}"', **headers}
    return http("POST", f"{plane.url}/v1/commands", body, headers=sent), capability


def test_one_trace_runs_through_http_bus_database_and_adapter(watched: Watched) -> None:
    """A single server span for the request; under it what every service did, down to the call of the target.

    Requirements: V1
    """
    plane, collector = watched.plane, watched.collector
    answer = plane.draft("traced")
    plane.closed(answer.body["workflow_id"])
    trace_id = plane.journal(answer.body["command_id"])["trace_id"]
    wanted = {
        ("gateway", "store.commit"),
        ("orchestrator", "orchestrator-commands StartCase"),
        ("orchestrator", "orchestrator-events Receipt"),
        ("orchestrator", "store.commit"),
        ("adapters", "adapters-wordpress ExecuteTask"),
        ("adapters", "wordpress.create_draft perform"),
        ("adapters", "adapters-wordpress-outcomes Sent"),
        ("adapters", "store.commit"),
        ("reconciler", "reconciler-events Established"),
        ("reconciler", "store.commit"),
        ("gateway", "gateway-views CaseChanged"),
        ("gateway", "gateway-views ElementChanged"),
    }

    def arrived() -> list[tuple[str, Span]] | None:
        """Each service exports by itself: a span may arrive long before the one that it is under."""
        found = collector.trace(trace_id)
        known = {span.span_id for _, span in found}
        whole = sum(span.parent_span_id not in known for _, span in found) == 1
        names = {(service.removeprefix("trueup-"), span.name) for service, span in found}
        return found if whole and wanted <= names else None

    found = eventually(arrived, f"all of {wanted} under one")
    servers = [span for _, span in found if span.kind == Span.SPAN_KIND_SERVER]
    assert [
        attributes_of(span).get("http.method") or attributes_of(span)["http.request.method"] for span in servers
    ] == ["POST"]
    known = {span.span_id for _, span in found}
    assert [span for _, span in found if span.parent_span_id not in known] == servers
    (call,) = [span for _, span in found if span.name == "wordpress.create_draft perform"]
    told = attributes_of(call)
    row = plane.journal(answer.body["command_id"])
    assert call.kind == Span.SPAN_KIND_CLIENT
    assert told["trueup.command_id"] == row["command_id"]
    assert told["trueup.attempt_id"] == row["attempts"][0]["attempt_id"]
    assert (told["trueup.system"], told["trueup.fence"], told["trueup.outcome"]) == ("wordpress", 1, "CONFIRMED")
    assert not [span for _, span in found if span.status.code == Status.STATUS_CODE_ERROR]


def test_an_attempt_without_an_answer_is_an_error_in_its_trace(watched: Watched) -> None:
    """The lost answer, the look-up and the settlement are in the same trace; the call is marked as failed.

    Requirements: V1
    """
    plane, collector = watched.plane, watched.collector
    plane.fault("lose_answer", method="POST", path="/posts$")
    answer = plane.draft("doubted")
    plane.closed(answer.body["workflow_id"])
    trace_id = plane.journal(answer.body["command_id"])["trace_id"]

    def arrived() -> dict[str, Span] | None:
        found = {span.name: span for _, span in collector.trace(trace_id)}
        wanted = {"wordpress.create_draft perform", "wordpress.create_draft find", "reconciler-events Found"}
        return found if wanted <= set(found) else None

    found = eventually(arrived, "spans of the settlement")
    call = found["wordpress.create_draft perform"]
    assert call.status.code == Status.STATUS_CODE_ERROR
    assert attributes_of(call)["trueup.outcome"] == "UNKNOWN"
    assert attributes_of(found["wordpress.create_draft find"])["trueup.outcome"] == "CONFIRMED"


def test_a_request_that_is_not_sampled_is_recorded_nowhere(watched: Watched) -> None:
    """The caller's decision holds in every service; the trace id is kept in the journal all the same.

    Requirements: V1
    """
    plane, collector = watched.plane, watched.collector
    quiet, _ = submit(plane, "quiet", {"traceparent": GIVEN})
    plane.closed(quiet.body["workflow_id"])
    assert plane.journal(quiet.body["command_id"])["trace_id"] == GIVEN.split("-")[1]
    loud = plane.draft("loud")
    plane.closed(loud.body["workflow_id"])
    loud_id = plane.journal(loud.body["command_id"])["trace_id"]

    def later() -> bool | None:
        services = {service for service, span in collector.trace(loud_id) if "ElementChanged" in span.name}
        return True if services else None

    eventually(later, "spans of the command after it")
    assert collector.trace(GIVEN.split("-")[1]) == []


def test_messages_on_the_bus_carry_the_trace_in_standard_headers(watched: Watched) -> None:
    """CloudEvents attributes and W3C trace context stand in the headers of what every service published.

    Requirements: V1
    """
    plane = watched.plane
    answer = plane.draft("on-the-bus")
    plane.closed(answer.body["workflow_id"])
    trace_id = plane.journal(answer.body["command_id"])["trace_id"]

    async def events() -> list[dict[str, str]]:
        client = await connect_admin(plane.nats_url)
        try:
            stream = client.jetstream()
            last = (await stream.stream_info("EVENTS")).state.last_seq
            return [(await stream.get_msg("EVENTS", seq)).headers or {} for seq in range(1, last + 1)]
        finally:
            await client.close()

    def of_all_three() -> list[dict[str, str]] | None:
        """The case closes before the reconciler has told of the object that it watches from now on."""
        mine = [headers for headers in asyncio.run(events()) if trace_id in headers.get("traceparent", "")]
        return mine if len({headers["ce-source"] for headers in mine}) > 2 else None

    mine = eventually(of_all_three, "a message of each service that had a part")
    assert {headers["ce-source"] for headers in mine} == {"adapter.wordpress", "orchestrator", "reconciler"}
    assert all(set(REQUIRED) <= set(headers) for headers in mine)
    assert {headers["ce-specversion"] for headers in mine} == {"1.0"}
    assert len({headers["ce-id"] for headers in mine}) == len(mine)


def metrics_of(plane: Plane, name: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    port = plane.process(name).health["port"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as response:
        text = response.read().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_of_every_service_show_the_work_and_name_no_tenant(watched: Watched) -> None:
    """What one command adds to the numbers of each service, and labels that stay within closed lists.

    Requirements: T3
    """
    plane = watched.plane
    before = {service: metrics_of(plane, service) for service in SERVICES}
    answer = plane.draft("measured")
    plane.closed(answer.body["workflow_id"])
    plane.fault("status", method="POST", path="/posts$", status=403, body={"code": "rest_cannot_create"})
    failed = plane.draft("measured-refusal", prefer="wait=60")
    assert failed.body["state"] == "FAILED"

    def grown(service: str, name: str, **labels: str) -> float:
        key = (name, tuple(sorted(labels.items())))
        return metrics_of(plane, service).get(key, 0.0) - before[service].get(key, 0.0)

    expected = [
        ("gateway", "trueup_commands_accepted_total", {}, 2),
        ("gateway", "trueup_http_seconds_count", {"method": "POST", "route": "/v1/commands", "status": "202"}, 1),
        ("orchestrator", "trueup_operations_total", {"system": "wordpress", "state": "SUCCESS"}, 1),
        ("orchestrator", "trueup_operations_total", {"system": "wordpress", "state": "FAILED"}, 1),
        ("adapters", "trueup_adapter_attempts_total", {"system": "wordpress", "outcome": "CONFIRMED"}, 1),
        ("adapters", "trueup_adapter_attempts_total", {"system": "wordpress", "outcome": "REJECTED"}, 1),
        ("repair-planner", "trueup_exceptions_opened_total", {"kind": "failed"}, 1),
    ]
    for service, name, labels, count in expected:
        eventually(
            lambda s=service, n=name, x=labels, c=count: True if grown(s, n, **x) == c else None,  # type: ignore[misc]
            f"{service} {name} {labels} grows by {count}",
        )
    at_least = [  # messages are delivered once or more often, and of the command before some are still on their way
        ("orchestrator", "trueup_loop_messages_total", {"loop": "orchestrator-commands"}, 2),
        ("adapters", "trueup_loop_messages_total", {"loop": "adapters-wordpress-outcomes"}, 2),
        ("reconciler", "trueup_loop_messages_total", {"loop": "reconciler-events"}, 1),
        ("reconciler", "trueup_element_phases_total", {"system": "wordpress", "phase": "HEALTHY"}, 2),
    ]
    for service, name, labels, count in at_least:
        eventually(
            lambda s=service, n=name, x=labels, c=count: True if grown(s, n, **x) >= c else None,  # type: ignore[misc]
            f"{service} {name} {labels} grows by {count}",
        )
    for service in SERVICES:
        found = metrics_of(plane, service)
        assert found["trueup_bus_connected", ()] == 1
        assert found["trueup_publisher_failed_total", ()] == 0
        assert ("trueup_outbox_unsent", ()) in found
        told = {value for _, labels in found for _, value in labels}
        assert not {value for value in told if "acme" in value or "agent:" in value or "_01" in value}, told


def test_logs_and_spans_hold_no_secret_no_token_and_no_payload(watched: Watched) -> None:
    """Marked words in a payload, in a broken message and in a failing one; tokens and passwords: none is written down.

    Requirements: T3
    """
    plane, collector = watched.plane, watched.collector
    plane.fault("status", method="POST", path="/posts$", status=400, body={"code": "rest_invalid_param"})
    refused, capability = submit(plane, "secretive", {}, content=f"<p>{MARKER}</p>", title=MARKER)
    assert refused.status == 202
    answer, other = submit(plane, "secretive-2", {}, content=f"<p>{MARKER}</p>")
    plane.closed(answer.body["workflow_id"])
    plane.submit(f"{capability}x", "k", "wordpress.create_draft", "post", {"title": MARKER})
    unfit, _ = submit(plane, "secretive-3", {}, title={MARKER: [MARKER]}, **{MARKER: MARKER})
    assert unfit.status == 422
    http("POST", f"{plane.url}/v1/commands", b'{"payload": "' + MARKER.encode(), headers={"idempotency-key": MARKER})
    asyncio.run(send_poison(plane))
    token = plane.token(sub=f"agent:{MARKER}")
    operator = plane.token("operator:olga", roles=("operator", "viewer"))

    def quarantined() -> bool | None:
        items = plane.get("/v1/exceptions?status=open", operator).body["items"]
        return True if sum(item["kind"] == "quarantined_message" for item in items) >= 2 else None

    eventually(quarantined, "the broken messages are exceptions")
    folder = plane.plan.folder
    secrets = [MARKER, capability, other, token, *(part for part in capability.split(".")[1:])]
    for path in (*folder.secrets.glob("*.json"),):
        content = json.loads(path.read_text())
        secrets += [
            value for key, value in content.items() if isinstance(value, str) and len(value) >= 20 and key != "x"
        ]
    assert len(secrets) > 12
    logs = {path.name: path.read_text(errors="replace") for path in Path(folder.logs).iterdir()}
    assert {f"{service}.log" for service in SERVICES} <= set(logs)
    assert "message failed alone" in logs["orchestrator.log"]
    leaks = [(name, secret[:20]) for name, text in logs.items() for secret in secrets if secret in text]
    assert leaks == []
    exported = b"".join(collector.raw)
    assert [secret[:20] for secret in secrets if secret.encode() in exported] == []
    for service in SERVICES:
        for line in logs[f"{service}.log"].splitlines():
            assert {"at", "level", "logger", "message", "service", "instance"} <= set(json.loads(line)), line


async def send_poison(plane: Plane) -> None:
    """Messages that a handler cannot read, and that the database cannot store, straight onto the bus."""
    client = await connect_admin(plane.nats_url)
    try:
        bodies = (f'{{"payload": "{MARKER}", "command_id": 7}}', f'["{MARKER}')
        for number, body in enumerate(bodies):
            message = Message(
                id=f"poison-{number}",
                type="StartCase",
                subject=command_subject("acme"),
                tenant="acme",
                source="gateway",
                time=real_now(),
                data=body.encode(),
            )
            await client.jetstream().publish(message.subject, message.data, headers=headers_of(message))
    finally:
        await client.close()


def test_key_figures_and_service_levels_of_a_plane_at_work(watched: Watched) -> None:
    """What closes is counted within a timer's interval, read by the API and scraped; labels name no tenant.

    Requirements: V2, V3
    """
    plane = watched.plane
    reader = plane.token("operator:eye", roles=("viewer",))

    def items(path: str) -> list[dict[str, Any]]:
        answer = http("GET", f"{plane.url}{path}", headers={"authorization": f"Bearer {reader}"})
        found: list[dict[str, Any]] = answer.body["items"]
        return found

    def converged() -> float:
        found = [item for item in items("/v1/kpis") if item["name"] == "convergence_rate"]
        return float(found[0]["numerator"])

    before = converged()
    plane.closed(plane.draft("counted").body["workflow_id"])
    eventually(lambda: True if converged() > before else None, "the case among the converged")

    def counted() -> dict[str, dict[str, Any]] | None:
        levels = {item["name"]: item for item in items("/v1/slo")}
        return levels if levels["operations_terminal_in_time"]["good"] >= 1 else None

    levels = eventually(counted, "the operation among those that ended in time")
    assert len(levels) == 6 and all(item["burn_rates"] for item in levels.values())

    def scraped() -> dict[tuple[str, tuple[tuple[str, str], ...]], float] | None:
        found = metrics_of(plane, "gateway")
        ratio = found.get(("trueup_kpi_numerator", (("kpi", "convergence_rate"), ("window", "1h"))), 0)
        return found if ratio > before else None

    found = eventually(scraped, "the same number at /metrics")
    burning = {labels for name, labels in found if name == "trueup_slo_burn_rate"}
    assert len(burning) == 6 * 5
    assert ("trueup_exceptions_oldest_seconds", (("kind", "dead_letter"),)) in found


FIGURES_ASKED_FOR = {
    "stuck execution rate": "stuck_execution_rate",
    "orphan recovery rate": "orphan_recovery_rate",
    "state drift rate": "state_drift_rate",
    "reconciliation success rate": "reconciliation_success_rate",
    "DLQ entry rate": "dlq_entry_rate",
    "DLQ age": "dlq_age",
    "repair queue depth": "repair_queue_depth",
    "repair success rate": "repair_success_rate",
    "mean time to repair": "mean_time_to_repair",
    "compensation failure rate": "compensation_failure_rate",
    "unknown outcome rate": "unknown_outcome_rate",
    "manual intervention rate": "manual_intervention_rate",
    "convergence rate": "convergence_rate",
    "queue lag": "queue_lag",
    "lease expiries": "lease_expiries",
    "timer lateness": "timer_lateness",
    "cost per correct case": "cost_per_correct_case",
}
"""The words of the requirement (V2, V4), and the figure that each is."""


def test_every_figure_that_was_asked_for_is_told_by_both_faces(watched: Watched) -> None:
    """By name, with numerator, denominator and window, over operations, cases or exceptions; a target that
    configuration changes is what both faces promise.

    Requirements: V2, V3, V4
    """
    plane = watched.plane
    reader = plane.token("operator:eye", roles=("viewer",))
    told: dict[str, list[dict[str, Any]]] = {}
    for item in plane.get("/v1/kpis", reader).body["items"]:
        told.setdefault(item["name"], []).append(item)
    last = ("trueup_kpi_denominator", (("kpi", "cost_per_correct_case"), ("window", "7d")))
    metrics = eventually(lambda: found if last in (found := metrics_of(plane, "gateway")) else None, "figures")
    for words, name in FIGURES_ASKED_FOR.items():
        assert name in told, words
        windows = [item["window_seconds"] for item in told[name]]
        assert windows in ([0], [3600, 86400, 604800]), words
        for item in told[name]:
            assert item["numerator"] >= 0 and item["denominator"] >= 0, words
            assert item["over"] in ("operations", "cases", "exceptions"), words
        for window in ("0s",) if windows == [0] else ("1h", "1d", "7d"):
            for part in ("numerator", "denominator"):
                assert (f"trueup_kpi_{part}", (("kpi", name), ("window", window))) in metrics, words
    (level,) = [item for item in plane.get("/v1/slo", reader).body["items"] if item["name"] == "repairs_within_sla"]
    assert level["target"] == metrics["trueup_slo_target", (("slo", "repairs_within_sla"),)] == 0.5


def test_a_case_of_a_plane_at_work_knows_what_it_cost(watched: Watched) -> None:
    """One draft: one transmission, the time it took, every fact of its history, and nobody's time; its risk is told as
    well, for the level that asks about it.

    Requirements: V4, V3
    """
    plane = watched.plane
    answer = plane.draft("costs")
    workflow_id = answer.body["workflow_id"]
    cost = plane.closed(workflow_id)["cost"]
    (attempt,) = plane.journal(answer.body["command_id"])["attempts"]
    events = plane.history(workflow_id)
    assert (cost["attempts"], cost["effects"], cost["transitions"]) == (1, 1, len(events))
    sent, ended = (datetime.fromisoformat(attempt[name]) for name in ("started_at", "ended_at"))
    assert cost["worker_seconds"] == (ended - sent).total_seconds() > 0
    assert cost["stored_bytes"] > sum(len(json.dumps(event.payload)) for event in events)
    assert (cost["human_minutes"], cost["human_since"], cost["model_tokens"]) == (0, None, 0)

    async def kept() -> Any:
        connection = await asyncpg.connect(plane.database_url)
        try:
            return await connection.fetchrow(
                "SELECT risk, attempts, transitions, stored_bytes FROM gateway.case_view WHERE workflow_id = $1",
                workflow_id,
            )
        finally:
            await connection.close()

    row = asyncio.run(kept())
    assert row["risk"] in ("low", "medium") and row["stored_bytes"] == cost["stored_bytes"]
    assert (row["attempts"], row["transitions"]) == (1, len(events))


def test_metrics_arrive_over_opentelemetry_as_they_are_scraped(watched: Watched) -> None:
    """Every service exports; counters, gauges and histograms keep their kinds, labels and values.

    Requirements: V2
    """
    plane, collector = watched.plane, watched.collector
    services = {f"trueup-{service}" for service in SERVICES}
    gateway = {("trueup-gateway", name) for name in ("trueup_slo_burn_rate", "trueup_kpi", "trueup_http_seconds")}

    def arrived() -> bool | None:
        return (services <= {service for service, _ in collector.metrics} and gateway <= set(collector.metrics)) or None

    eventually(arrived, "metrics of every service, and what the gateway counts by a timer")
    messages = collector.metrics["trueup-orchestrator", "trueup_loop_messages"]
    assert messages.sum.is_monotonic
    loops = {pair.value.string_value for point in messages.sum.data_points for pair in point.attributes}
    assert {"orchestrator-commands", "orchestrator-events"} <= loops
    assert collector.metrics["trueup-gateway", "trueup_bus_connected"].gauge.data_points[0].as_double == 1
    requests = collector.metrics["trueup-gateway", "trueup_http_seconds"].histogram.data_points
    for point in requests:
        assert sum(point.bucket_counts) == point.count and len(point.bucket_counts) == len(point.explicit_bounds) + 1
    exported = {name for service, name in collector.metrics if service == "trueup-gateway"}
    scraped = {name for name, _ in metrics_of(plane, "gateway")}
    plain = {re.sub("_(total|bucket|sum|count|created)$", "", name) for name in scraped}
    assert exported <= plain


def test_alerts_and_dashboard_name_only_what_a_plane_exports(watched: Watched) -> None:
    """Every metric in an expression is one of those that the services of a running plane show, with its labels.

    Requirements: V2
    """
    plane = watched.plane
    shown: dict[str, set[str]] = {}
    for service in SERVICES:
        port = plane.process(service).health["port"]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as response:
            text = response.read().decode()
        for family in text_string_to_metric_families(text):
            suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
            for suffix in suffixes:
                name = family.name + suffix
                labels = {label for sample in family.samples if sample.name == name for label in sample.labels}
                shown.setdefault(name, set()).update(labels)
    expressions = [
        rule["expr"]
        for group in yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text())["groups"]
        for rule in group["rules"]
    ]
    dashboard = json.loads((DEPLOY / "grafana" / "trueup.json").read_text())
    expressions += [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    asked = {name for expression in expressions for name in re.findall(r"trueup_[a-z_]+", expression)}
    assert len(asked) >= 20 and asked <= shown.keys(), asked - shown.keys()
    for expression in expressions:
        for name, selector in re.findall(r"(trueup_[a-z_]+)\{([^}]*)\}", expression):
            wanted = set(re.findall(r"([a-z_]+)=", selector))
            assert not shown[name] or wanted <= shown[name], expression


def test_a_broken_invariant_of_a_real_plane_becomes_an_exception_and_ends(watched: Watched) -> None:
    """An operation that is over and still has a timer, as a fault would leave it: found, told, and told to be over.

    Requirements: V5
    """
    plane = watched.plane
    answer = plane.draft("broken")
    plane.closed(answer.body["workflow_id"])
    name = answer.body["command_id"]

    def change(statement: str) -> None:
        async def run() -> None:
            connection = await asyncpg.connect(plane.database_url)
            try:
                await connection.execute(statement, name)
            finally:
                await connection.close()

        asyncio.run(run())

    reader = plane.token("operator:eye", roles=("viewer",))

    def exception(status: str) -> dict[str, Any] | None:
        url = f"{plane.url}/v1/exceptions?cause=invariant_live_after_end&status={status}"
        items = http("GET", url, headers={"authorization": f"Bearer {reader}"}).body["items"]
        return next((item for item in items if item["command_id"] == name), None)

    change("UPDATE orchestrator.operation SET wake_at = trueup.now() + interval '1 day' WHERE command_id = $1")
    found = eventually(lambda: exception("open"), "the breach as an exception")
    assert found["owner"] == "operators" and found["kind"] == "needs_review"
    change("UPDATE orchestrator.operation SET wake_at = NULL, state_version = state_version + 1 WHERE command_id = $1")
    ended = eventually(lambda: exception("closed"), "its end")
    assert ended["exception_id"] == found["exception_id"] and ended["resolution_type"] == "invariant_holds"
