"""The topology: who may say what on the bus, decided by subject permissions that nobody else holds."""

from __future__ import annotations

from itertools import combinations

import pytest

from trueup_common.contracts.topology import (
    CONSUMERS,
    DUE,
    GOVERNANCE_BEAT_SUBJECT,
    SERVICES,
    STREAMS,
    answer_subject,
    beat_subject,
    command_subject,
    event_subject,
    grant_subject,
    permissions,
    task_consumer,
    task_subject,
)

SYSTEMS = ("wordpress", "bench")
PERMITTED = {service: permissions(service, SYSTEMS) for service in SERVICES}


def overlap(one: str, other: str) -> bool:
    """True where some subject matches both patterns."""
    left, right = one.split("."), other.split(".")
    for index in range(max(len(left), len(right))):
        if index < len(left) and left[index] == ">":
            return index < len(right)
        if index < len(right) and right[index] == ">":
            return index < len(left)
        if index >= len(left) or index >= len(right):
            return False
        if left[index] != right[index] and "*" not in (left[index], right[index]):
            return False
    return True


def publishers(subject: str) -> set[str]:
    return {service for service, may in PERMITTED.items() if any(overlap(pattern, subject) for pattern in may.publish)}


def subscribers(subject: str) -> set[str]:
    return {
        service for service, may in PERMITTED.items() if any(overlap(pattern, subject) for pattern in may.subscribe)
    }


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("a.b", "a.b", True),
        ("a.*", "a.b", True),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        ("a", "a.>", False),
        ("a.*", "a.b.c", False),
        ("a.*.c", "a.b.*", True),
        ("a.*.c", "a.b.d", False),
        ("*.b", "a.>", True),
    ],
)
def test_the_overlap_of_patterns(one: str, other: str, expected: bool) -> None:
    assert overlap(one, other) is expected


@pytest.mark.parametrize(
    ("subject", "owners"),
    [
        (command_subject("acme"), {"gateway"}),
        (grant_subject("acme"), {"orchestrator"}),
        (task_subject("wordpress", "execute", "acme"), {"gateway", "orchestrator"}),
        (task_subject("wordpress", "find", "acme"), {"reconciler"}),
        (task_subject("wordpress", "probe", "acme"), {"reconciler"}),
        (event_subject("gateway", "grant-refused", "acme"), {"gateway"}),
        (event_subject("orchestrator", "case", "acme"), {"orchestrator"}),
        (event_subject("orchestrator", "settle", "acme"), {"orchestrator"}),
        (event_subject("adapter.wordpress", "receipt", "acme"), {"adapters"}),
        (event_subject("adapter.wordpress", "found", "acme"), {"adapters"}),
        (event_subject("reconciler", "settlement", "acme"), {"reconciler"}),
        (event_subject("reconciler", "verified", "acme"), {"reconciler"}),
        (event_subject("planner", "exception", "acme"), {"repair-planner"}),
        (beat_subject("wordpress"), {"adapters"}),
        (answer_subject("gateway-1"), {"orchestrator"}),
        (GOVERNANCE_BEAT_SUBJECT, {"gateway"}),
        ("$KV.governance.>", {"gateway"}),
        ("$KV.catalog.>", set()),
        ("$O.artifacts.>", {"gateway"}),
        ("$JS.API.DIRECT.GET.OBJ_artifacts.>", {"gateway", "adapters"}),
        ("$JS.API.STREAM.PURGE.OBJ_artifacts", set()),
        ("$JS.API.CONSUMER.CREATE.OBJ_artifacts.>", set()),
    ],
)
def test_each_kind_of_message_can_be_published_only_by_the_service_that_owns_it(subject: str, owners: set[str]) -> None:
    """Requirements: G1"""
    assert publishers(subject) == owners


def test_no_service_may_publish_another_services_events() -> None:
    """Requirements: G1"""
    owned = {
        "gateway": ["trueup.evt.gateway.>"],
        "orchestrator": ["trueup.evt.orchestrator.>"],
        "adapters": ["trueup.evt.adapter.>", "trueup.evt.adapters.>"],
        "reconciler": ["trueup.evt.reconciler.>"],
        "repair-planner": ["trueup.evt.planner.>", "trueup.evt.repair-planner.>"],
    }
    for owner, patterns in owned.items():
        for pattern in patterns:
            assert publishers(pattern) == {owner}


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_fetches_and_acks_only_from_its_own_consumers(service: str) -> None:
    """Requirements: G1"""
    for consumer in [*CONSUMERS, *(task_consumer(system) for system in SYSTEMS)]:
        for subject in (
            f"$JS.API.CONSUMER.MSG.NEXT.{consumer.stream}.{consumer.durable}",
            f"$JS.ACK.{consumer.stream}.{consumer.durable}.1.2.3.4.5",
        ):
            assert (service in publishers(subject)) == (consumer.service == service)


@pytest.mark.parametrize("stream", [stream.name for stream in STREAMS])
def test_no_service_creates_changes_reads_or_empties_streams_or_consumers(stream: str) -> None:
    for verb in (
        "STREAM.CREATE",
        "STREAM.UPDATE",
        "STREAM.DELETE",
        "STREAM.PURGE",
        "STREAM.MSG.GET",
        "STREAM.MSG.DELETE",
    ):
        assert publishers(f"$JS.API.{verb}.{stream}") == set()
    for verb in ("CONSUMER.CREATE", "CONSUMER.DURABLE.CREATE", "CONSUMER.DELETE", "DIRECT.GET"):
        assert publishers(f"$JS.API.{verb}.{stream}") == set()
        assert publishers(f"$JS.API.{verb}.{stream}.>") == set()


def test_no_service_hears_what_is_not_for_it() -> None:
    for stream in STREAMS:
        for subject in stream.subjects:
            assert subscribers(subject) == set()
    for one, other in combinations(SERVICES, 2):
        inboxes = [pattern for pattern in PERMITTED[one].subscribe if pattern.startswith("_INBOX")]
        assert inboxes
        for pattern in inboxes:
            assert not any(overlap(pattern, foreign) for foreign in PERMITTED[other].subscribe)
    assert subscribers(answer_subject("gateway-1")) == {"gateway"}


def test_every_consumer_filters_inside_its_stream_and_hears_something_that_somebody_says() -> None:
    streams = {stream.name: stream for stream in STREAMS}
    for consumer in [*CONSUMERS, *(task_consumer(system) for system in SYSTEMS)]:
        for pattern in consumer.filters:
            assert any(overlap(pattern, subject) for subject in streams[consumer.stream].subjects)
            assert publishers(pattern) - {consumer.service} or pattern == "trueup.evt.*.quarantined.*"


def test_streams_do_not_share_subjects_and_work_queues_have_disjoint_consumers() -> None:
    for one, other in combinations(STREAMS, 2):
        assert not any(overlap(a, b) for a in one.subjects for b in other.subjects)
    queues = {stream.name for stream in STREAMS if stream.work_queue}
    consumers = [
        consumer
        for consumer in [*CONSUMERS, *(task_consumer(system) for system in SYSTEMS)]
        if consumer.stream in queues
    ]
    for one, other in combinations(consumers, 2):
        if one.stream == other.stream:
            assert not any(overlap(a, b) for a in one.filters for b in other.filters)


def test_every_subject_ends_in_its_tenant() -> None:
    """Requirements: T1"""
    for subject in (
        command_subject("acme"),
        grant_subject("acme"),
        task_subject("wordpress", "execute", "acme"),
        event_subject("orchestrator", "case", "acme"),
    ):
        assert subject.rsplit(".", 1)[1] == "acme"


def test_the_due_columns_exist_in_the_tables_they_name() -> None:
    from trueup_reconciler.tables import METADATA as RECONCILER
    from trueup_repair_planner.tables import METADATA as PLANNER

    known = {metadata.schema: metadata for metadata in (RECONCILER, PLANNER)}
    checked = 0
    for schema, table, column, _ in DUE:
        if schema in known:
            assert column in known[schema].tables[f"{schema}.{table}"].columns
            checked += 1
    assert checked == 6


def test_no_receipt_waits_behind_a_burst_of_callbacks() -> None:
    """Signals come by thousands at a change of shifts; whoever hears them by one consumer hears nothing else by it.

    Requirements: B4
    """
    hearing = [consumer for consumer in CONSUMERS if event_subject("gateway", "signal", "*") in consumer.filters]
    assert [(consumer.durable, consumer.filters) for consumer in hearing] == [
        ("orchestrator-signals", (event_subject("gateway", "signal", "*"),))
    ]
