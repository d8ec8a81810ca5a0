"""Declarations: what cannot be kept is refused at registration, and a declaration is its hash."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from trueup_common.contracts.declaration import CommandDeclaration, Establishes, RetryPolicy
from trueup_common.contracts.pointer import Absent, ValueFrom, fill, resolve, take


def fields(**changes: Any) -> dict[str, Any]:
    return {
        "type": "wordpress.create_draft",
        "system": "wordpress",
        "title": "Create a draft",
        "permission": "content:draft",
        "effect_class": "RETRYABLE",
        "payload_schema": {"type": "object"},
        "findability": "marker",
        "success_condition": "the draft exists",
        **changes,
    }


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"system": "github"}, "does not belong to system"),
        ({"findability": "none"}, "manual policy"),
        ({"findability": "none", "manual_policy": ""}, "manual policy"),
        ({"effect_class": "COMPENSABLE"}, "declares no compensation"),
        ({"compensation": {"command_type": "github.delete_branch", "payload": {}}}, "within the system"),
        ({"repair": {"command_type": "github.archive_version", "payload": {}}}, "within the system"),
        ({"key_lifetime_seconds": 3600, "timeout_seconds": 3600}, "outlive"),
        ({"key_lifetime_seconds": 3600, "late_window_seconds": 3600}, "outlive"),
        ({"type": "wordpress.Create"}, "type"),
        ({"type": "wordpress.create.draft"}, "type"),
        ({"effect_class": "HARMLESS"}, "effect_class"),
        ({"timeout_seconds": 0}, "timeout_seconds"),
        ({"expected_version": "sometimes"}, "expected_version"),
        ({"forward_recovery": "hope"}, "forward_recovery"),
        ({"unknown_field": 1}, "unknown_field"),
    ],
)
def test_a_declaration_that_cannot_be_kept_is_refused(changes: dict[str, Any], reason: str) -> None:
    """Requirements: X8"""
    with pytest.raises(ValidationError, match=reason):
        CommandDeclaration.model_validate(fields(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"findability": "none", "manual_policy": "ask the owner"},
        {"effect_class": "COMPENSABLE", "compensation": {"command_type": "wordpress.trash_post", "payload": {}}},
    ],
)
def test_what_can_be_kept_is_accepted_and_survives_as_data(changes: dict[str, Any]) -> None:
    """Requirements: X8"""
    declared = CommandDeclaration.model_validate(fields(**changes))
    assert CommandDeclaration.model_validate_json(declared.model_dump_json()).sha256 == declared.sha256


def test_any_other_value_is_another_declaration() -> None:
    """Requirements: X8"""
    one = CommandDeclaration.model_validate(fields())
    assert one.sha256 == CommandDeclaration.model_validate(fields()).sha256
    for changes in ({"timeout_seconds": 31}, {"title": "Other"}, {"risk": "high"}, {"retry": {"attempts_max": 7}}):
        assert CommandDeclaration.model_validate(fields(**changes)).sha256 != one.sha256


def test_the_retry_horizon_is_the_sum_of_all_attempts_and_capped_waits() -> None:
    """Requirements: I3"""
    declared = CommandDeclaration.model_validate(
        fields(
            timeout_seconds=30,
            start_window_seconds=10,
            retry=RetryPolicy(attempts_max=4, initial_seconds=1, factor=10, ceiling_seconds=50).model_dump(),
        )
    )
    assert declared.retry_horizon_seconds == 4 * 40 + 1 + 10 + 50 + 50


def established(**changes: Any) -> dict[str, Any]:
    return {
        "element": "wordpress.status",
        "resource": {"pointer": "/receipt/id"},
        "value": {"const": "draft"},
        "probe": {"kind": "post_field"},
        **changes,
    }


@pytest.mark.parametrize(
    "changes",
    [{"normaliser": "whatever"}, {"element": "status"}, {"element": "wordpress."}, {"window_seconds": -1}],
)
def test_an_element_that_cannot_be_compared_is_refused(changes: dict[str, Any]) -> None:
    """Requirements: X8"""
    assert Establishes.model_validate(established()).normaliser == "exact"
    with pytest.raises(ValidationError):
        Establishes.model_validate(established(**changes))


DOCUMENT = {"payload": {"slug": "a", "tags": ["x", "y"], "a/b": {"~": 1}, "none": None}, "target": {"resource": "r"}}


@pytest.mark.parametrize(
    ("pointer", "value"),
    [
        ("/payload/slug", "a"),
        ("/payload/tags/1", "y"),
        ("/payload/a~1b/~0", 1),
        ("/payload/none", None),
        ("/target", {"resource": "r"}),
    ],
)
def test_a_pointer_finds_what_it_names(pointer: str, value: Any) -> None:
    assert resolve(DOCUMENT, pointer) == value


@pytest.mark.parametrize("pointer", ["/payload/title", "/payload/tags/2", "/payload/slug/x", "/payload/tags/x", "/x/y"])
def test_a_pointer_that_leads_nowhere_says_so_or_gives_the_default(pointer: str) -> None:
    with pytest.raises(Absent):
        resolve(DOCUMENT, pointer)
    assert take(DOCUMENT, ValueFrom(pointer=pointer, default="d")) == "d"
    assert fill(DOCUMENT, {"a": ValueFrom(pointer=pointer), "b": ValueFrom(const=1)}) == {"b": 1}


def test_a_value_comes_from_a_constant_or_a_pointer_not_from_both() -> None:
    with pytest.raises(ValidationError):
        ValueFrom(const=1, pointer="/a")
    with pytest.raises(ValidationError):
        ValueFrom(pointer="a")
