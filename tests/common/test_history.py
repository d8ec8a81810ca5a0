"""The hash chain of a case: no event can be changed, left out, repeated or reordered without being noticed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.common.json_values import OBJECTS

from trueup_common.contracts import history
from trueup_common.contracts.canonical import digest
from trueup_common.contracts.journal import HistoryEvent

T0 = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)


def chain(payloads: list[dict[str, Any]]) -> list[HistoryEvent]:
    events: list[HistoryEvent] = []
    previous = history.GENESIS
    for seq, payload in enumerate(payloads, start=1):
        event = history.append(
            workflow_id="wf_1",
            tenant="acme",
            seq=seq,
            prev_hash=previous,
            type="OperationMoved",
            occurred_at=T0 + timedelta(seconds=seq),
            recorded_at=T0 + timedelta(seconds=seq),
            actor="orchestrator",
            payload=payload,
            causation_id="msg_1",
        )
        events.append(event)
        previous = event.hash
    return events


PAYLOADS = st.lists(OBJECTS, min_size=2, max_size=5)


@settings(max_examples=150, deadline=None)
@given(payloads=PAYLOADS)
def test_a_chain_holds_and_holds_again_after_it_travelled_as_json(payloads: list[dict[str, Any]]) -> None:
    """Requirements: L4"""
    events = chain(payloads)
    assert history.verify(events) is None
    assert history.verify([HistoryEvent.model_validate_json(event.model_dump_json()) for event in events]) is None


@pytest.mark.parametrize("field", sorted(set(HistoryEvent.model_fields) - {"seq"}))
def test_changing_any_field_of_any_event_shows_and_names_the_event(field: str) -> None:
    """Requirements: L4"""
    events = chain([{"state": "RECEIVED"}, {"state": "QUEUED"}, {"state": "SUCCESS"}])
    for index in range(3):
        value = getattr(events[index], field)
        other: Any
        if isinstance(value, datetime):
            other = value + timedelta(microseconds=1)
        elif isinstance(value, dict):
            other = {**value, "state": "FAILED"}
        elif isinstance(value, int):
            other = value + 1
        else:
            other = f"{value}x" if value is not None else "x"
        forged = [*events[:index], events[index].evolve(**{field: other}), *events[index + 1 :]]
        complaint = history.verify(forged)
        assert complaint is not None
        assert str(index + 1) in complaint


@settings(max_examples=100, deadline=None)
@given(payloads=PAYLOADS, data=st.data())
def test_leaving_out_repeating_or_swapping_events_shows(payloads: list[dict[str, Any]], data: st.DataObject) -> None:
    """Requirements: L4"""
    events = chain(payloads)
    index = data.draw(st.integers(0, len(events) - 2))
    assert history.verify(events[:index] + events[index + 1 :]) is not None
    assert history.verify([*events[: index + 1], events[index], *events[index + 1 :]]) is not None
    swapped = [*events]
    swapped[index], swapped[index + 1] = swapped[index + 1], swapped[index]
    assert history.verify(swapped) is not None


def test_a_forger_who_recomputes_a_hash_breaks_the_link_to_the_next_event() -> None:
    """Requirements: L4"""
    events = chain([{"state": "RECEIVED"}, {"state": "QUEUED"}, {"state": "SUCCESS"}])
    payload = {"state": "FAILED"}
    forged = events[1].evolve(payload=payload, payload_sha256=digest(payload))
    forged = forged.evolve(hash=history.hash_of(forged))
    assert history.verify([events[0], forged, events[2]]) == "event 3 does not follow event 2"


def test_a_tombstone_in_place_of_a_payload_keeps_the_chain() -> None:
    events = chain([{"state": "RECEIVED"}, {"secret": "x"}, {"state": "SUCCESS"}])
    erased = events[1].evolve(payload={"tombstone": "erased on request"})
    assert history.verify([events[0], erased, events[2]]) is None


def test_a_part_of_a_chain_is_verified_from_where_it_starts() -> None:
    events = chain([{"n": 1}, {"n": 2}, {"n": 3}])
    assert history.verify(events[1:], prev_hash=events[0].hash, first_seq=2) is None
    assert history.verify(events[1:], prev_hash=events[1].hash, first_seq=2) is not None
    assert history.verify(events[1:]) is not None


def test_a_gap_with_a_link_is_still_a_gap() -> None:
    """A forger who leaves an event out and links its neighbours anew cannot hide the number that is missing.

    Requirements: L4
    """
    first = chain([{}])[0]
    third = history.append(
        workflow_id="wf_1",
        tenant="acme",
        seq=3,
        prev_hash=first.hash,
        type="OperationMoved",
        occurred_at=T0,
        recorded_at=T0,
        actor="orchestrator",
        payload={},
    )
    assert history.verify([first, third]) == "event 2 is missing (found 3)"
