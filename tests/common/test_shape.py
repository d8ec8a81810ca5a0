"""Contracts: no naive time enters anywhere, misspelt fields are refused, and values do not change in place."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from trueup_common.contracts import declaration, events, governance, grant, journal, observation, task
from trueup_common.contracts.ids import attempt_id, command_id, derived_id, is_tenant, new_id
from trueup_common.contracts.shape import AnyInstant, Contract, ForwardContract, rfc3339
from trueup_common.contracts.task import Target

MODULES = (declaration, events, governance, grant, journal, observation, task)


def _mentions_time(annotation: Any) -> bool:
    if annotation is datetime:
        return True
    return any(_mentions_time(part) for part in typing.get_args(annotation))


def _time_fields() -> Iterator[tuple[type[BaseModel], str]]:
    for module in MODULES:
        for model in vars(module).values():
            if isinstance(model, type) and issubclass(model, Contract | ForwardContract):
                for name, info in model.model_fields.items():
                    if _mentions_time(info.annotation):
                        yield model, name


FIELDS = sorted(set(_time_fields()), key=lambda item: (item[0].__name__, item[1]))


def test_the_contracts_have_many_time_fields() -> None:
    assert len(FIELDS) > 50
    assert (events.StartCase, "deadline_at") in FIELDS
    assert (journal.JournalRow, "next_retry_at") in FIELDS


@pytest.mark.parametrize(("model", "field"), FIELDS, ids=lambda item: item if isinstance(item, str) else item.__name__)
@pytest.mark.parametrize("naive", ["2026-03-01T12:00:00", datetime(2026, 3, 1, 12)])  # noqa: DTZ001 - the naive one
def test_a_naive_time_is_refused_at_every_field(model: type[BaseModel], field: str, naive: object) -> None:
    """Requirements: L4"""
    with pytest.raises(ValidationError) as caught:
        model.model_validate({field: naive})
    assert "timezone_aware" in {error["type"] for error in caught.value.errors() if error["loc"] == (field,)}


def test_between_services_only_utc_passes_and_from_outside_any_offset_becomes_utc() -> None:
    """No message carries another offset; a person's time is converted at the edge.

    Requirements: L4
    """
    tokyo = datetime(2026, 3, 1, 21, 0, tzinfo=timezone(timedelta(hours=9)))
    noon = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
    with pytest.raises(ValidationError, match="timezone_offset"):
        observation.Observation(element="a", verdict="UNKNOWN", observed_at=tokyo, source="x")  # type: ignore[arg-type]
    seen = observation.Observation(element="a", verdict="UNKNOWN", observed_at=noon, source="x")  # type: ignore[arg-type]
    assert observation.Observation.model_validate_json(seen.model_dump_json()) == seen
    outside = TypeAdapter(AnyInstant).validate_python("2026-03-01T21:00:00+09:00")
    assert (outside, outside.tzinfo) == (noon, UTC)
    assert rfc3339(tokyo) == "2026-03-01T12:00:00Z"
    with pytest.raises(ValueError, match="naive"):
        rfc3339(datetime(2026, 3, 1))  # noqa: DTZ001 - the naive one


def test_declarations_refuse_misspelt_fields_and_events_ignore_what_is_newer_than_they_are() -> None:
    with pytest.raises(ValidationError):
        declaration.RetryPolicy.model_validate({"attempt_max": 3})
    target = Target.model_validate({"system": "a", "resource": "b", "newer": 1})
    assert target.model_dump() == {"system": "a", "resource": "b", "expected_version": None}


def test_a_contract_does_not_change_in_place() -> None:
    target = Target(system="a", resource="b")
    with pytest.raises(ValidationError):
        target.system = "c"  # type: ignore[misc]
    assert target.evolve(system="c").system == "c"
    assert target.system == "a"


def test_a_retry_derives_the_same_ids_and_another_attempt_another() -> None:
    """Requirements: I4"""
    operation = command_id("wf_1", "draft", 1)
    assert operation == command_id("wf_1", "draft", 1)
    assert operation != command_id("wf_1", "draft", 2)
    assert attempt_id(operation, 1) == attempt_id(operation, 1)
    assert attempt_id(operation, 1) != attempt_id(operation, 2)
    assert derived_id("evt", "a", "bc") != derived_id("evt", "ab", "c")
    assert new_id("cmd") != new_id("cmd")
    for make in (new_id, lambda prefix: derived_id(prefix, 1)):
        with pytest.raises(ValueError, match="prefix"):
            make("nonsense")


@pytest.mark.parametrize(
    ("tenant", "accepted"),
    [
        ("acme", True),
        ("a", True),
        ("acme-2", True),
        ("0a", True),
        ("Acme", False),
        ("-acme", False),
        ("acme.eu", False),
        ("acme*", False),
        ("acme>", False),
        ("ac me", False),
        ("", False),
        ("a" * 64, False),
        ("acme\n", False),
    ],
)
def test_a_tenant_has_one_accepted_spelling_that_is_safe_in_a_subject(tenant: str, accepted: bool) -> None:
    """Requirements: T1"""
    assert is_tenant(tenant) is accepted
