"""Tracing at the edge: a given trace is continued, a missing one begun, and a request is traced once."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.gateway.edge import EdgeUnderTest, draft

from trueup_gateway.api.app import create_app

GIVEN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """A provider that keeps spans in memory, for this test only."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()


async def test_a_trace_is_continued_or_begun(gateway: EdgeUnderTest) -> None:
    """The trace id stands in message and row; nonsense in the header begins a new trace and is never stored.

    Requirements: V1
    """
    capability = await gateway.capability("bench.post", system="bench", resource="*", max_uses=9)
    body = {"command_type": "bench.post", "target": {"system": "bench", "resource": "stub"}, "payload": {}}
    for number, header in enumerate(
        (GIVEN, None, "nonsense", "00-" + "0" * 32 + "-b7ad6b7169203331-01", GIVEN + "\u00e9")
    ):
        headers = {} if header is None else {"traceparent": header}
        sent = {"Authorization": f"Bearer {capability['capability']}", "Idempotency-Key": f"trace-{number}", **headers}
        encoded = {name: value.encode("latin-1") for name, value in sent.items()}
        response = await gateway.client.post("/v1/commands", json=body, headers=encoded)
        message = gateway.publisher.published[-1].message
        assert message.traceparent is not None
        assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", message.traceparent)
        assert (message.traceparent == GIVEN) is (number == 0)
        row = (await gateway.client.get(response.json()["links"]["self"], headers=gateway.headers())).json()
        assert row["trace_id"] == message.traceparent.split("-")[1]


@pytest.mark.parametrize("path", ["command", "ordinary"])
async def test_a_request_is_traced_once(gateway: EdgeUnderTest, spans: InMemorySpanExporter, path: str) -> None:
    """One server span per request, child of the caller's, and the message continues exactly that span.

    Requirements: V1
    """
    slug = f"traced-{path}"
    capability = (await gateway.capability())["capability"]
    transport = httpx.ASGITransport(app=create_app(gateway.gateway, traced=True))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        if path == "command":
            headers = {"Authorization": f"Bearer {capability}", "Idempotency-Key": slug, "traceparent": GIVEN}
            response = await client.post("/v1/commands", json=draft(slug), headers=headers)
            assert response.status_code == 202
        else:
            response = await client.get("/v1/commands", headers={**gateway.headers(), "traceparent": GIVEN})
            assert response.status_code == 200
    finished: tuple[ReadableSpan, ...] = spans.get_finished_spans()
    assert len(finished) == 1, [span.name for span in finished]
    (span,) = finished
    assert span.kind is trace.SpanKind.SERVER and span.parent is not None and span.context is not None
    assert (
        f"{span.context.trace_id:032x}" == GIVEN.split("-")[1] and f"{span.parent.span_id:016x}" == GIVEN.split("-")[2]
    )
    if path == "command":
        message = gateway.publisher.published[-1].message
        assert message.traceparent == f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-01"
