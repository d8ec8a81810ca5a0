"""What a step and its undoing are sent to: the object that their payloads name, not what the case is about."""

from __future__ import annotations

from typing import Any

from tests.orchestrator.sagas import DECLARATIONS, Run, command, document, effect, make

from trueup_common.contracts.declaration import is_about
from trueup_common.contracts.states import EffectClass
from trueup_orchestrator.core.start import identity_of

REF = {"type": "object", "required": ["ref"], "properties": {"ref": {"type": "string"}}}
OF = {"type": "object", "required": ["of"], "properties": {"of": {"type": "string"}}}
MAKE = command("make", EffectClass.COMPENSABLE, undo="unmake", acts_on="page", identity=("/target/resource",))
UNMAKE = command("unmake", EffectClass.RETRYABLE, acts_on="page/{/payload/ref}", payload_schema=REF)
PURGE = command("purge", EffectClass.RETRYABLE, acts_on="zone/{/payload/of}", payload_schema=OF)
NAMING: dict[str, Any] = {**DECLARATIONS, **{item.type: item for item in (MAKE, UNMAKE, PURGE)}}


def test_a_step_is_sent_to_the_object_that_its_payload_names() -> None:
    """A document that names no resource leaves it to the declaration; where that says nothing, it is the case's object.

    Requirements: G5, S6
    """
    run = Run(document(make("a"), effect("b", "site.purge"), effect("c", "site.publish")), declarations=NAMING)
    run.succeed("a").succeed("b")
    assert [run.row(step).target_resource for step in "abc"] == ["page", "zone/b", "article/7"]


def test_what_a_document_names_is_kept_and_is_judged_where_its_grant_is() -> None:
    """Requirements: G5"""
    run = Run(document(effect("b", "site.purge", resource="zone/other")), declarations=NAMING)
    row = run.row("b")
    assert row.target_resource == "zone/other" and not is_about(PURGE, row.payload, row.target_resource)


def test_an_undoing_is_sent_to_the_object_that_it_takes_back() -> None:
    """The effect was created in a collection, and what undoes it names the one that was made.

    Requirements: S6, G5
    """
    run = Run(document(make("a"), effect("b", "site.purge", on={"failed": "compensate"})), declarations=NAMING)
    run.succeed("a")
    made = run.row("a").receipt or {}
    run.fail("b")
    row = run.row("a:undo")
    assert row.target_resource == f"page/{made['ref']}" and is_about(UNMAKE, row.payload, row.target_resource)


def test_two_labels_of_one_object_are_one_identity() -> None:
    """Requirements: I2"""
    first, second = (identity_of(MAKE, {"resource": label}, {"of": "a"}) for label in ("page", "page/other"))
    assert first == second is not None
