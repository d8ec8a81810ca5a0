"""The fast ways to make, copy and write contracts give what the checked ways give."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from uuid import RFC_4122, UUID, uuid5

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from tests.orchestrator.cases import NOW, Story, receipt, settlement, start_case

from trueup_common.contracts.ids import derived_id, new_id
from trueup_common.contracts.journal import HistoryEvent
from trueup_common.contracts.shape import json_bytes
from trueup_common.contracts.states import FindVerdict, ReceiptStatus
from trueup_common.contracts.task import ExecuteTask
from trueup_orchestrator.core.launch import operation_of


def contracts() -> list[BaseModel]:
    story = Story()
    return [
        story.row,
        story.case.instance,
        story.last.events[0],
        receipt(story.row, ReceiptStatus.CONFIRMED),
        settlement(story.row, FindVerdict.CONFIRMED),
        start_case(),
        story.declaration,
    ]


@pytest.mark.parametrize("model", contracts(), ids=lambda model: type(model).__name__)
def test_json_bytes_write_the_same_document(model: BaseModel) -> None:
    assert json.loads(json_bytes(model)) == json.loads(model.model_dump_json())
    assert type(model).model_validate_json(json_bytes(model)) == model


def test_foreign_values_that_are_too_large_are_written_all_the_same() -> None:
    assert json.loads(json_bytes({"big": 2**90, "at": NOW, "deep": [{"n": -(2**70)}]})) == {
        "big": 2**90,
        "at": "2026-03-01T12:00:00Z",
        "deep": [{"n": -(2**70)}],
    }


def test_trusted_instances_are_whole() -> None:
    """A field that is added to a contract later must be added where it is made unchecked too."""
    story = Story()
    (task,) = story.sent("ExecuteTask")
    read = ExecuteTask.model_validate_json(task.data)
    made = operation_of(story.row)
    for whole in (story.last.events[0], made, made.target):
        assert set(whole.__dict__) == set(type(whole).model_fields)
    assert set(json.loads(task.data)) == set(ExecuteTask.model_fields)
    assert read.operation == made


def test_a_copy_is_another_row_and_equals_a_checked_one() -> None:
    event = Story().history[0]
    copy = event.evolve(seq=7)
    assert (event.seq, copy.seq) == (1, 7)
    assert copy == HistoryEvent(**{**event.__dict__, "seq": 7})
    with pytest.raises(ValueError, match="frozen"):
        copy.seq = 8


@given(st.lists(st.one_of(st.text(), st.integers()), min_size=1, max_size=4))
def test_derived_ids_are_version_5_uuids(parts: list[str | int]) -> None:
    namespace = UUID("6f0c2b0e-3f4e-5c55-9a4c-0d6f5a1c7e11")
    try:
        name = "\x1f".join(str(part) for part in parts)
        name.encode()
    except UnicodeEncodeError:
        return
    assert derived_id("evt", *parts) == f"evt_{uuid5(namespace, name).hex}"


@given(st.sampled_from(("", "\x1fdraft\x1f1")), st.integers(0, 250_000_000_000_000))
def test_what_follows_from_an_id_begins_with_the_same_moment(rest: str, milliseconds: int) -> None:
    """Requirements: B4"""
    case = new_id("wf", datetime.fromtimestamp(milliseconds / 1000, UTC))
    parts = [case, *rest.split("\x1f")[1:]]
    derived = derived_id("cmd", *parts)
    moment, following = UUID(case.partition("_")[2]), UUID(derived.partition("_")[2])
    assert (moment.version, following.version, following.variant) == (7, 5, RFC_4122)
    assert moment.int >> 80 == following.int >> 80 == pytest.approx(milliseconds, abs=1)
    assert derived != derived_id("cmd", *parts, "other") and derived == derived_id("cmd", *parts)


@pytest.mark.parametrize(
    "not_an_id", ["wf_0123", f"wf_{'0' * 32}:1", f"x wf_{'0' * 32}", f"WF_{'0' * 32}", f"wf_{'g' * 32}"]
)
def test_what_follows_from_anything_else_is_spread(not_an_id: str) -> None:
    """Requirements: B4"""
    assert UUID(derived_id("cmd", not_an_id, 1).partition("_")[2]).version == 5
