"""The object of a command: named from its payload, in one spelling, and no label stands for another one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.common.test_declaration import established, fields

from trueup_common.contracts.canonical import digest
from trueup_common.contracts.declaration import CommandDeclaration, identified, is_about, object_of, target_of
from trueup_common.contracts.objects import LABEL_CHARACTERS_MAX, encloses, label_of
from trueup_common.contracts.pointer import Absent

TEXT = {"type": "string"}
PARTS = {"type": "string", "pattern": "^[^/]+(/[^/]+)*$"}


def declared(acts_on: str | None, **properties: Any) -> CommandDeclaration:
    """A type whose payload must have all of these members."""
    schema = {"type": "object", "required": list(properties), "properties": properties}
    return CommandDeclaration.model_validate(fields(acts_on=acts_on, payload_schema=schema))


def chosen(*branches: list[str]) -> CommandDeclaration:
    """A type that is told one of two members."""
    schema = {"properties": {"name": TEXT, "id": TEXT}, "oneOf": [{"required": branch} for branch in branches]}
    return CommandDeclaration.model_validate(fields(acts_on="x/{/payload/name|/payload/id}", payload_schema=schema))


@pytest.mark.parametrize(
    ("acts_on", "reason"),
    [
        ("post/{/payload/other}", "not required"),
        ("post/{/payload/maybe}", "not required"),
        ("post/{/payload/list}", "not one text or integer"),
        ("post/{/payload/either}", "not one text or integer"),
        ("post/{/target/resource}", "does not point into the payload"),
        ("post/{/payload}", "does not point into the payload"),
        ("post/{/payload/id", "segments"),
        ("post/{/payload/id}x", "segments"),
        ("post-{/payload/id}", "segments"),
        ("post//{/payload/id}", "segments"),
        ("/post", "segments"),
        ("post/", "segments"),
        ("post/../page", "segments"),
        ("*", "segments"),
        ("", "segments"),
        ("post/{/payload/id|/payload/list}", "oneOf"),
    ],
)
def test_a_template_that_might_name_nothing_is_refused(acts_on: str, reason: str) -> None:
    """Requirements: X8, G3"""
    properties = {"id": {"type": "integer"}, "list": {"type": "array"}, "either": {"type": ["string", "null"]}}
    schema = {"required": list(properties), "properties": {**properties, "maybe": TEXT}}
    with pytest.raises(ValidationError, match=reason):
        CommandDeclaration.model_validate(fields(acts_on=acts_on, payload_schema=schema))


@pytest.mark.parametrize(
    ("acts_on", "schema", "value", "expected"),
    [
        ("post", {}, 1, "post"),
        ("post/{/payload/id}", {"type": "integer"}, 134, "post/134"),
        ("post/{/payload/id}", {"type": "integer"}, 134.0, "post/134"),
        ("{/payload/id}", PARTS, "acme/articles", "acme/articles"),
        ("check/{/payload/id}", TEXT, "home", "check/home"),
        ("check/{/payload/id}", TEXT, "article:0028:v1", "check/article:0028:v1"),
        ("check/{/payload/id}", TEXT, "a/b", "check/a%2Fb"),
        ("check/{/payload/id}", TEXT, "a%2Fb", "check/a%252Fb"),
        ("check/{/payload/id}", TEXT, "..", "check/%2E%2E"),
        ("check/{/payload/id}", TEXT, ".", "check/%2E"),
        ("check/{/payload/id}", TEXT, "", "check/%"),
        ("check/{/payload/id}", TEXT, "*", "check/%2A"),
        ("check/{/payload/id}", TEXT, "a b\n\u3000", "check/a%20b%0A%E3%80%80"),
        ("check/{/payload/id}", TEXT, "\ud800", "check/%ED%A0%80"),
        ("check/{/payload/id}", PARTS, "a/b c", "check/a/b%20c"),
        ("check/{/payload/id}", PARTS, "a/../b", "check/a%2F..%2Fb"),
        ("check/{/payload/id}", PARTS, "a//b", "check/a%2F%2Fb"),
        ("check/{/payload/id}", PARTS, "/a", "check/%2Fa"),
    ],
)
def test_an_object_is_named_from_the_payload(acts_on: str, schema: Any, value: Any, expected: str) -> None:
    """A `/` divides a value only where its schema's pattern says what it is.

    Requirements: G3, T3
    """
    assert object_of(declared(acts_on, id=schema), {"id": value}) == expected


@pytest.mark.parametrize("payload", [{}, {"id": None}, {"id": True}, {"id": 1.5}, {"id": [1]}, [1], None, "text"])
def test_a_payload_that_names_nothing_is_about_nothing(payload: Any) -> None:
    """Requirements: G3"""
    declaration = declared("post/{/payload/id}", id={"type": "integer"})
    with pytest.raises(Absent):
        object_of(declaration, payload)
    assert not is_about(declaration, payload, "post")
    assert target_of(declaration, payload, "own") == "own"


@given(one=st.text(max_size=8), other=st.text(max_size=8), divided=st.booleans())
def test_two_values_never_share_a_name_and_none_leaves_its_place(one: str, other: str, divided: bool) -> None:
    """Requirements: G3, T3"""
    declaration = declared("check/{/payload/id}", id=PARTS if divided else TEXT)
    first, second = (object_of(declaration, {"id": value}) or "" for value in (one, other))
    assert (first == second) == (one == other)
    parts = first.split("/")
    assert parts[0] == "check" and not any(part in {"", ".", ".."} or "*" in part for part in parts)
    assert divided or len(parts) == 2


def test_of_two_members_the_one_that_is_given_names_the_object() -> None:
    """Requirements: X8, G3"""
    declaration = chosen(["id"], ["name"])
    assert object_of(declaration, {"name": "home"}) == "x/home"
    assert object_of(declaration, {"id": "chk_1"}) == "x/chk_1"
    for branches in ([["id"], ["name"], ["other"]], [["id", "name"]], [[]]):
        with pytest.raises(ValidationError, match="oneOf"):
            chosen(*branches)


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("post", True),
        ("post/134", True),
        ("post/133", False),
        ("post/13", False),
        ("post/134/meta", False),
        ("post/", False),
        ("", False),
        ("/", False),
        ("POST", False),
        ("Posts/133", False),
        ("posts/134", False),
        ("p-o_s.t/133", False),
        ("\uff50ost/133", False),
        ("post /133", False),
    ],
)
def test_a_label_is_the_object_or_what_encloses_it(label: str, expected: bool) -> None:
    """Nor is anything that only looks like one of its kind. Requirements: G3, G4"""
    declaration = declared("post/{/payload/id}", id={"type": "integer"})
    assert is_about(declaration, {"id": 134}, label) is expected
    assert encloses(label, "post/134") is expected


@pytest.mark.parametrize("label", ["article/0028", "campaign", "page/133"])
def test_a_label_of_another_kind_is_the_callers_own_word(label: str) -> None:
    """It names no object of this kind, so it stands for none; policy and identity go by the object. Requirements: G3"""
    assert is_about(declared("post/{/payload/id}", id={"type": "integer"}), {"id": 134}, label)
    assert not is_about(declared("{/payload/id}", id=PARTS), {"id": "acme/articles"}, label)


@pytest.mark.parametrize("label", ["post", "post/other", "article/0028"])
def test_what_creates_touches_nothing_that_a_label_could_name(label: str) -> None:
    """Requirements: G3"""
    declaration = declared("post")
    assert is_about(declaration, {}, label) and object_of(declaration, {}) == "post"


def test_a_type_that_names_no_object_is_matched_by_its_label_and_keeps_its_hash() -> None:
    """A declaration from before there were objects is the same declaration.

    Requirements: X8
    """
    declaration = declared(None)
    assert is_about(declaration, {}, "anything/at/all") and target_of(declaration, {}, "own") == "own"
    assert declaration.sha256 == digest(declaration.model_dump(mode="json", exclude={"acts_on", "exclusive"}))
    assert declaration.sha256 != declared("post").sha256


def test_two_labels_of_one_object_are_one_target_of_an_identity() -> None:
    """Requirements: I2"""
    schema = {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}}
    pointers = ("/target/resource",)
    made = fields(acts_on="post/{/payload/id}", payload_schema=schema, identity=pointers)
    declaration = CommandDeclaration.model_validate(made)
    known = [identified(declaration, {"resource": label}, {"id": 7}) for label in ("post", "post/7")]
    assert known[0] == known[1] == {"target": {"resource": "post/7"}, "payload": {"id": 7}}
    free = declaration.evolve(acts_on=None)
    assert identified(free, {"resource": "post"}, {"id": 7})["target"] == {"resource": "post"}


@pytest.mark.parametrize(
    "changes",
    [
        {"establishes": [established(resource={"pointer": "/target/resource"})]},
        {"establishes": [established(value={"pointer": "/target/resource"})]},
        {"repair": {"command_type": "wordpress.fix", "payload": {"a": {"pointer": "/target/resource"}}}},
        {"compensation": {"command_type": "wordpress.fix", "payload": {"a": {"pointer": "/target/resource"}}}},
        {
            "compensation": {
                "command_type": "wordpress.fix",
                "payload": {},
                "only_if": {"pointer": "/target/resource"},
            }
        },
    ],
)
def test_a_label_is_no_name_of_what_was_established(changes: dict[str, Any]) -> None:
    """Where the payload names the object, what a caller wrote beside it decides nothing.

    Requirements: X8
    """
    CommandDeclaration.model_validate(fields(**changes))
    with pytest.raises(ValidationError, match="a label names no object"):
        CommandDeclaration.model_validate(fields(acts_on="post", **changes))


def test_the_label_that_we_write_fits_where_the_object_is_long() -> None:
    """Requirements: G5"""
    named = "publication/" + "x" * LABEL_CHARACTERS_MAX
    assert label_of(named) == "publication" and label_of("publication/x") == "publication/x"
