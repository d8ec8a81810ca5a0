"""Watching: spans where a request is recorded and nowhere else, logs without what they must not hold, honest counts."""

import json
import logging
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanKind, StatusCode
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel

from trueup_common.contracts.envelope import Message, Outgoing
from trueup_common.runtime import tracing
from trueup_common.runtime.clock import DatabaseTime
from trueup_common.runtime.crash import RealCrashPoints
from trueup_common.runtime.db import SqlStore
from trueup_common.runtime.host import Loop, LoopStatistics, Unprocessable
from trueup_common.runtime.metrics import PROCESS, Reading, Tally, exposition, observe_http
from trueup_common.runtime.ports import Moment, StoreBusy
from trueup_common.runtime.redact import told
from trueup_common.runtime.telemetry import JsonFormatter
from trueup_common.runtime.timers import DueLoop

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
RECORDED, UNRECORDED = f"00-{TRACE}-{PARENT}-01", f"00-{TRACE}-{PARENT}-00"
SECRET = "correct-horse-battery"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """Recording as a service does it: the parent decides."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(sampler=ParentBased(TraceIdRatioBased(0.0)), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.record_with(provider)
    yield exporter
    tracing.record_with(None)


def trace_and_parent(span: ReadableSpan) -> tuple[str, str]:
    assert span.context is not None and span.parent is not None
    return f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}"


def message(message_id: str, traceparent: str | None = RECORDED) -> Message:
    return Message(
        id=message_id,
        type="StartCase",
        subject="trueup.cmd.acme",
        tenant="acme",
        source="gateway",
        time=NOW,
        data=b'{"a": 1}',
        traceparent=traceparent,
    )


# -- a loop over ports that are nothing but bookkeeping ---------------------------------------------------------------


class MemoryTransaction:
    async def claim(self, consumer: str, message_ids: Sequence[str]) -> tuple[Moment, frozenset[str]]:
        return Moment(NOW, NOW), frozenset(message_ids)

    async def post(self, outgoing: Sequence[Outgoing]) -> None:
        return None

    async def quarantine(self, consumer: str, message: Message, reason: str) -> None:
        return None

    async def count_failure(self, consumer: str, message_id: str) -> int:
        return 1


class MemoryStore:
    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[MemoryTransaction]:
        yield MemoryTransaction()


@dataclass
class Delivered:
    message: Message
    fate: str = ""

    async def ack(self) -> None:
        self.fate = "ack"

    async def nak(self, delay_seconds: float) -> None:
        self.fate = "nak"

    async def term(self) -> None:
        self.fate = "term"


@dataclass
class Poisonable:
    poison: str = ""
    inbox: bool = True
    seen: list[str] = field(default_factory=list)

    async def handle(self, tx: Any, moment: Moment, messages: Sequence[Message]) -> Sequence[Outgoing]:
        for one in messages:
            if one.id == self.poison:
                raise ValueError(SECRET)
        self.seen += [one.id for one in messages]
        return ()

    async def settled(self, messages: Sequence[Message]) -> None:
        return None


class Silent:
    name = "orchestrator-commands"

    async def fetch(self, limit: int) -> Sequence[Delivered]:
        return ()

    async def publish(self, outgoing: Sequence[Outgoing]) -> None:
        return None

    async def pause(self, seconds: float) -> None:
        return None


def loop_of(handler: Poisonable) -> Loop[Any]:
    return Loop(
        source=Silent(),
        store=MemoryStore(),
        handler=handler,
        publisher=Silent(),
        crash=RealCrashPoints(),
        schedule=Silent(),
    )


async def test_every_message_of_a_batch_has_a_span_of_its_own_with_the_shared_commit_below(
    spans: InMemorySpanExporter,
) -> None:
    """Each recorded message: a consumer span under its own trace and `store.commit` under that; others leave none.

    Requirements: V1
    """
    loop = loop_of(Poisonable())
    loop.watch = tracing.LoopSpans("orchestrator-commands")
    other = f"00-{'1' * 32}-{'2' * 16}-01"
    await loop.process(
        [Delivered(message("m1")), Delivered(message("m2", other)), Delivered(message("m3", UNRECORDED))]
    )
    finished = spans.get_finished_spans()
    consumers = [span for span in finished if span.kind is SpanKind.CONSUMER]
    assert [span.name for span in consumers] == ["orchestrator-commands StartCase"] * 2
    assert [trace_and_parent(span) for span in consumers] == [(TRACE, PARENT), ("1" * 32, "2" * 16)]
    commits = [span for span in finished if span.name == "store.commit"]
    assert len(finished) == 4
    assert len({(span.start_time, span.end_time) for span in commits}) == 1
    for consumer, commit in zip(consumers, commits, strict=True):
        assert consumer.context is not None
        assert trace_and_parent(commit) == (trace_and_parent(consumer)[0], f"{consumer.context.span_id:016x}")
        assert (consumer.start_time or 0) <= (commit.start_time or 0) <= (commit.end_time or 0)
        assert (commit.end_time or 0) <= (consumer.end_time or 0)
    attributes = dict(consumers[0].attributes or {})
    assert attributes["messaging.message.id"] == "m1"
    assert attributes["trueup.tenant"] == "acme"
    assert attributes["messaging.batch.message_count"] == 3


async def test_a_message_that_fails_is_an_error_without_the_words_of_the_failure(spans: InMemorySpanExporter) -> None:
    """Requirements: V1, T3"""
    loop = loop_of(Poisonable(poison="m1"))
    loop.watch = tracing.LoopSpans("orchestrator-commands")
    delivered = Delivered(message("m1"))
    await loop.process([delivered])
    (span,) = spans.get_finished_spans()
    assert delivered.fate == "nak"
    assert span.status.status_code is StatusCode.ERROR
    assert dict(span.attributes or {})["error.type"] == "ValueError"
    assert SECRET not in span.to_json()


async def test_a_loop_without_a_watch_takes_no_part_in_tracing(spans: InMemorySpanExporter) -> None:
    """Off is off: a service that traces nothing hands its loops no watch, and they make no span."""
    loop = loop_of(Poisonable())
    assert loop.watch is None
    await loop.process([Delivered(message("m1"))])
    assert spans.get_finished_spans() == ()


async def test_what_time_gives_rise_to_joins_the_trace_of_its_case(spans: InMemorySpanExporter) -> None:
    """A timer's message is recorded under the trace that it carries.

    Requirements: V1
    """

    async def tick(tx: Any, moment: Moment) -> Sequence[Outgoing]:
        return [Outgoing(message("task"))]

    due: DueLoop[Any] = DueLoop(
        name="orchestrator-due", store=MemoryStore(), tick=tick, publisher=Silent(), crash=RealCrashPoints()
    )
    due.watch = tracing.LoopSpans(due.name)
    assert await due.once() == 1
    assert [(span.name, trace_and_parent(span)[0]) for span in spans.get_finished_spans()] == [
        ("store.commit", TRACE),
        ("orchestrator-due StartCase", TRACE),
    ]


def test_a_span_around_a_block_is_current_inside_and_passes_its_own_context_on(spans: InMemorySpanExporter) -> None:
    """The target of a call gets the traceparent of the call, not that of the request.

    Requirements: V1
    """
    with tracing.span("perform", RECORDED, kind=SpanKind.CLIENT, attributes={"trueup.fence": 3}) as seen:
        inside = tracing.current_traceparent("otherwise")
        seen.set_attribute("trueup.outcome", "CONFIRMED")
    with pytest.raises(ValueError, match=SECRET), tracing.span("perform", RECORDED):
        raise ValueError(SECRET)
    assert tracing.current_traceparent("otherwise") == "otherwise"
    good, bad = spans.get_finished_spans()
    assert good.context is not None
    assert inside == f"00-{TRACE}-{good.context.span_id:016x}-01"
    assert trace_and_parent(good) == (TRACE, PARENT)
    assert dict(good.attributes or {}) == {"trueup.fence": 3, "trueup.outcome": "CONFIRMED"}
    assert bad.status.status_code is StatusCode.ERROR
    assert SECRET not in bad.to_json()


@pytest.mark.parametrize("parent", [None, "", UNRECORDED, "nonsense1", f"00-{'0' * 32}-{PARENT}-01", RECORDED + "é1"])
def test_nothing_is_recorded_without_a_recorded_parent(spans: InMemorySpanExporter, parent: str | None) -> None:
    """A request that is not sampled, or no request at all, leaves no span anywhere, whatever the header says."""
    with tracing.span("perform", parent) as seen:
        assert not seen.is_recording()
    tracing.record_commits([parent], tracing.instant())
    tracing.LoopSpans("loop").processed([message("m1", parent)], 1, 2)
    tracing.LoopSpans("loop").sent([message("m1", parent)], 1, 2)
    assert spans.get_finished_spans() == ()


def test_off_costs_nothing() -> None:
    """Without a provider every span is one and the same object, and no clock is read."""
    assert not tracing.is_on()
    first, second = tracing.span("a", RECORDED), tracing.span("b", RECORDED)
    assert first is second
    with first as seen:
        assert not seen.is_recording()
        assert tracing.current_traceparent("otherwise") == "otherwise"
    assert tracing.instant() == 0


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("http://collector:4318", "http://collector:4318/v1/traces"),
        ("http://collector:4318/", "http://collector:4318/v1/traces"),
        ("http://collector:4318/own/path", "http://collector:4318/own/path"),
    ],
)
def test_an_endpoint_without_a_path_gets_the_usual_one(given: str, used: str) -> None:
    assert tracing.endpoint_of(given) == used


# -- logs -------------------------------------------------------------------------------------------------------------


class Word(BaseModel):
    number: int


class OwnError(Exception):
    """Stands for an exception that the product defines."""


OwnError.__module__ = "trueup_common.somewhere"


def line_of(name: str, text: str, *args: object, error: BaseException | None = None, **extra: object) -> dict[str, Any]:
    exc_info = (type(error), error, error.__traceback__) if error is not None else None
    record = logging.LogRecord(name, logging.ERROR, "here.py", 1, text, args, exc_info)
    vars(record).update(extra)
    line = JsonFormatter("gateway", "gateway-2").format(record)
    assert "\n" not in line
    return dict(json.loads(line))


def raised(action: Any) -> BaseException:
    try:
        action()
    except Exception as error:
        return error
    raise AssertionError("did not raise")


def fails_inside() -> None:
    try:
        Word.model_validate({"number": SECRET})
    except ValueError as error:
        raise KeyError(SECRET) from error


def test_an_exception_is_logged_without_the_data_that_it_quotes() -> None:
    """Types, causes and places stand in the line; what a library quotes of a payload does not.

    Requirements: T3
    """
    error = raised(fails_inside)
    assert SECRET in repr(error) and SECRET in repr(error.__cause__)
    line = line_of("trueup.host", "failed", error=error, reason=told(error))
    assert SECRET not in json.dumps(line)
    text = "\n".join(line["exception"])
    assert "KeyError" in text and "ValidationError" in text and "fails_inside" in text


def test_our_own_exceptions_keep_their_words() -> None:
    """What the product itself says of a failure is worded without payloads, so it stays."""
    assert told(OwnError("two rows moved first")) == "OwnError: two rows moved first"
    assert (
        told(Unprocessable("StartCase is unreadable: 3 errors")) == "Unprocessable: StartCase is unreadable: 3 errors"
    )


def test_a_library_that_prints_what_failed_is_cut_short() -> None:
    """The event loop's own report of a lost task holds the exception's words on its second line.

    Requirements: T3
    """
    line = line_of("asyncio", f"Task exception was never retrieved\nfuture: <Task exception=ValueError('{SECRET}')>")
    assert line["message"] == "Task exception was never retrieved"


def test_a_line_names_process_and_trace() -> None:
    """Lines of one request are found by its trace id.

    Requirements: V1
    """
    line = line_of("trueup.host", "message %s failed", "m1", traceparent=UNRECORDED, loop="views")
    assert line["message"] == "message m1 failed"
    assert (line["service"], line["instance"], line["loop"], line["trace_id"]) == (
        "gateway",
        "gateway-2",
        "views",
        TRACE,
    )
    assert "traceparent" not in line
    assert datetime.fromisoformat(line["at"]).tzinfo is not None


def test_a_line_is_json_whatever_it_is_given() -> None:
    """Half a character or an odd object does not break the line."""
    line = line_of("trueup.host", "odd", half="\ud800", odd=Unprocessable, many=2**70)
    assert "ud800" in line["half"]


def test_an_uncaught_exception_is_a_line_too(capsys: pytest.CaptureFixture[str]) -> None:
    """A process that dies says why in JSON, without the words of the failure.

    Requirements: T3
    """
    from trueup_common.runtime.settings import Settings
    from trueup_common.runtime.telemetry import set_up

    root, hook = logging.getLogger(), sys.excepthook
    kept, level = list(root.handlers), root.level
    try:
        set_up(Settings(service="gateway", instance="gateway"))
        error = raised(fails_inside)
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        root.handlers[:], sys.excepthook = kept, hook
        root.setLevel(level)
        logging.captureWarnings(False)
    out = capsys.readouterr()
    assert json.loads(out.out)["message"] == "uncaught"
    assert SECRET not in out.out + out.err


# -- metrics ----------------------------------------------------------------------------------------------------------


def samples() -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(exposition().decode())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


@pytest.fixture
def process() -> Iterator[None]:
    """Whatever a test registers is forgotten again."""
    loops, tallies, readings = dict(PROCESS.loops), list(PROCESS.tallies), dict(PROCESS.readings)
    yield
    PROCESS.loops, PROCESS.tallies, PROCESS.readings = loops, tallies, readings


@pytest.mark.usefixtures("process")
async def test_loops_are_counted_by_themselves_and_read_when_somebody_asks() -> None:
    """The exposition shows what the loop's own statistics say at that moment."""
    loop = loop_of(Poisonable(poison="m2"))
    PROCESS.loops["orchestrator-commands"] = loop.statistics
    connected = False
    PROCESS.watch(Reading("trueup_bus_connected", "1 while connected", lambda: connected))
    await loop.process([Delivered(message("m1")), Delivered(message("m1")), Delivered(message("m2"))])
    connected = True
    found = samples()
    mine = (("loop", "orchestrator-commands"),)
    assert loop.statistics.messages_count == found["trueup_loop_messages_total", mine] == 2
    assert found["trueup_loop_failures_total", mine] == 1
    assert found["trueup_bus_connected", ()] == 1


def test_every_count_of_a_loop_is_exported() -> None:
    """A number that is added to the statistics is not forgotten in the metrics."""
    from trueup_common.runtime.metrics import LOOP_COUNTS

    kept = {name.removesuffix("_count") for name in LoopStatistics.__slots__ if name.endswith("_count")}
    assert kept == set(LOOP_COUNTS)


class _Sessions:
    """As much of a database as a store needs."""

    time = DatabaseTime()

    async def take(self) -> "_Sessions":
        return self

    async def give_back(self, session: "_Sessions", *, served_well: bool) -> None:
        """Nobody waits for it."""

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        yield


@pytest.mark.usefixtures("process")
async def test_only_what_was_committed_is_counted() -> None:
    """A transaction that was rolled back, and is repeated, counts once."""
    from trueup_common.runtime.mail import SqlTransaction

    tally = Tally("trueup_tried", "Tries", ("system", "state"))
    store = SqlStore(_Sessions(), SqlTransaction)  # type: ignore[arg-type]
    with pytest.raises(StoreBusy):
        async with store.transaction() as tx:
            tx.count(tally, "wordpress", "SUCCESS")
            raise StoreBusy("asked to")
    assert tally.counts == {}
    async with store.transaction() as tx:
        tx.count(tally, "wordpress", "SUCCESS")
        assert tally.counts == {}
    assert samples()["trueup_tried_total", (("state", "SUCCESS"), ("system", "wordpress"))] == 1


def test_a_client_cannot_make_up_labels() -> None:
    """An invented method joins the others, so the number of series is bounded.

    Requirements: T3
    """
    for number in range(3):
        observe_http(f"INVENTED{number}", "unmatched", 405, 0.001)
    found = samples()
    methods = {dict(labels)["method"] for name, labels in found if name == "trueup_http_seconds_count"}
    assert "other" in methods
    assert not any(method.startswith("INVENTED") for method in methods)
