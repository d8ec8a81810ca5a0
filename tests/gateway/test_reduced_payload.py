"""The reduced payload: the plane sees the same through it as through the whole one, and nothing else is in it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.edge import DRAFT

from trueup_common.contracts.compare import NORMALISERS
from trueup_common.contracts.declaration import CommandDeclaration, Establishes, Mapping, Probe, Repair
from trueup_common.contracts.pointer import Absent, ValueFrom, resolve
from trueup_common.runtime.bootstrap import installed_adapters
from trueup_gateway.core.reduced_payload import NotReducible, pointers, reduced

assert "exact" in NORMALISERS

RICH = DRAFT.evolve(
    identity=("/target/resource", "/payload/key/id"),
    establishes=(
        Establishes(
            element="alpha.value",
            resource=ValueFrom(pointer="/payload/where"),
            value=ValueFrom(pointer="/payload/value/deep"),
            probe=Probe(kind="alpha", params={"first": ValueFrom(pointer="/payload/list/0/name")}),
        ),
    ),
    compensation=Mapping(
        command_type="wordpress.trash_post",
        payload={"old": ValueFrom(pointer="/payload/was~1before"), "id": ValueFrom(pointer="/receipt/id")},
        only_if=ValueFrom(pointer="/payload/undo"),
    ),
    repair=Repair(command_type="wordpress.trash_post", payload={"again": ValueFrom(pointer="/payload/again")}),
)


def test_exactly_what_is_pointed_at_stays() -> None:
    """Identity, established values, probe parameters, compensation and repair; the rest stays in the artifact.

    Requirements: X1, L16
    """
    whole = {
        "content": "x" * 100_000,
        "key": {"id": 7, "note": "not needed"},
        "where": "post/7",
        "value": {"deep": [1, 2], "other": 1},
        "list": [{"name": "a"}, {"name": "b"}],
        "was/before": "draft",
        "undo": True,
        "again": None,
        "content_sha256": "0" * 64,
    }
    assert reduced(RICH, whole) == {
        "key": {"id": 7},
        "where": "post/7",
        "value": {"deep": [1, 2]},
        "list": [{"name": "a"}, {"name": "b"}],
        "was/before": "draft",
        "undo": True,
        "again": None,
        "content_sha256": "0" * 64,
    }
    assert reduced(DRAFT, {"title": "t", "slug": "s", "content": "c"}) == {"slug": "s"}


def test_a_scalar_on_the_way_to_nowhere_is_not_kept() -> None:
    assert reduced(RICH, {"value": "a long text", "key": 3}) == {}


@pytest.mark.parametrize("payload", [[], "text", None, 7])
def test_only_objects_have_parts(payload: Any) -> None:
    with pytest.raises(NotReducible):
        reduced(DRAFT, payload)


def test_a_pointer_at_the_whole_payload_cannot_be_reduced() -> None:
    whole = DRAFT.evolve(identity=("/payload",))
    with pytest.raises(NotReducible):
        reduced(whole, {"slug": "s"})


NAMES = ("key", "id", "where", "value", "deep", "list", "name", "was/before", "undo", "again", "content")
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)


def looked_up(document: Any, pointer: str) -> Any:
    try:
        return ("there", resolve(document, pointer))
    except Absent:
        return "absent"


@given(payload=st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=8))
def test_every_pointer_finds_the_same_in_both(payload: dict[str, Any]) -> None:
    """Requirements: X1"""
    small = reduced(RICH, payload)
    for pointer in pointers(RICH):
        assert looked_up({"payload": small}, pointer) == looked_up({"payload": payload}, pointer)
    assert reduced(RICH, small) == small


def declarations() -> list[CommandDeclaration]:
    return [item for adapter in installed_adapters().values() for item in adapter.declarations]


@pytest.mark.parametrize("declaration", declarations(), ids=lambda item: item.type)
def test_every_installed_command_type_can_be_given_by_reference(declaration: CommandDeclaration) -> None:
    """No shipped declaration points at its whole payload."""
    assert reduced(declaration, {}) == {}
