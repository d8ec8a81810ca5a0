"""Repairs as declared, over all installed command types, and the ids that two services derive alike."""

from __future__ import annotations

import jsonschema_rs
import pytest
from tests.reconciler.builders import at, seen
from tests.reconciler.test_repairs import BUDGET, drifted, word

from trueup_common.contracts.declaration import CommandDeclaration, Establishes, Repair
from trueup_common.contracts.pointer import resolve
from trueup_common.contracts.states import EffectClass
from trueup_common.runtime.bootstrap import installed_adapters
from trueup_orchestrator.core.success import document, repair_of
from trueup_reconciler.core import repairs
from trueup_repair_planner.core.lifecycle import exception_id

DECLARED = {item.type: item for adapter in installed_adapters().values() for item in adapter.declarations}
REPAIRED = [
    (declared, item, repair)
    for declared in DECLARED.values()
    for item in declared.establishes
    if (repair := declared.repair_of(item)) is not None
]
MENDABLE = {
    "cloudflare.purge": {"cloudflare.cache"},
    "database.record_publication": {"database.publication"},
    "database.cancel_publication": set(),
    "github.archive_version": {"github.commit", "content.version"},
    "github.restore_branch": {"github.commit", "content.version"},
    "monitoring.register_check": {"monitoring.registered"},
    "monitoring.remove_check": set(),
    "wordpress.create_draft": {"wordpress.status"},
    "wordpress.publish_post": {"wordpress.status"},
    "wordpress.restore_draft": {"wordpress.status"},
    "wordpress.update_post": set(),
    "wordpress.withdraw_post": set(),
    "wordpress.trash_post": set(),
}


def named(triple: tuple[CommandDeclaration, Establishes, Repair]) -> str:
    return f"{triple[0].type}:{triple[1].element}"


def test_what_can_be_brought_back_by_itself() -> None:
    """Every element of the publication's vector is brought back by a command of its own system, or is a person's.

    Requirements: R1, R3
    """
    found: dict[str, set[str]] = {name: set() for name in MENDABLE}
    for declared, item, _ in REPAIRED:
        found.setdefault(declared.type, set()).add(item.element)
    assert {name: elements for name, elements in found.items() if name in MENDABLE} == MENDABLE


@pytest.mark.parametrize("triple", REPAIRED, ids=named)
def test_a_repair_establishes_what_it_mends_and_can_be_repaired_itself(
    triple: tuple[CommandDeclaration, Establishes, Repair],
) -> None:
    """Never a replay of more than the element, never an irreversible step, and never a dead end.

    Requirements: R3, X8
    """
    declared, item, repair = triple
    mending = DECLARED[repair.command_type]
    assert mending.system == declared.system
    assert mending.effect_class is not EffectClass.IRREVERSIBLE
    (again,) = [one for one in mending.establishes if one.element == item.element]
    assert mending.repair_of(again) is not None
    assert repair.verification
    properties = mending.payload_schema["properties"]
    assert {*repair.payload, *repair.binds} <= set(properties)
    assert set(mending.payload_schema["required"]) <= {*repair.payload, *repair.binds}


def test_the_offer_is_filled_in_from_what_was_asked_for_and_what_came_of_it() -> None:
    """Requirements: R3"""
    declared = DECLARED["wordpress.publish_post"]
    (status,) = [item for item in declared.establishes if item.element == "wordpress.status"]
    payload = {"post_id": 7, "content_sha256": "a" * 64, "expected_modified_gmt": "2026-01-01T00:00:00"}
    known = document(
        {"system": "wordpress", "resource": "post", "expected_version": None},
        payload,
        "cmd_1",
        {"post_id": 7, "slug": "hello", "resource": "post/7"},
    )
    offer = repair_of(declared, status, known)
    assert offer is not None
    assert offer.payload == {"post_id": 7, "content_sha256": "a" * 64, "restored_slug": "hello"}
    assert (offer.command_type, offer.resource, offer.mends) == ("wordpress.publish_post", "post", ("different",))
    bound = {**offer.payload, **dict.fromkeys(offer.binds, "2026-01-02T00:00:00")}
    assert jsonschema_rs.is_valid(declared.payload_schema, bound)
    assert resolve(known, "/payload/expected_modified_gmt") not in offer.payload.values(), (
        "the old version binds nothing"
    )
    (content,) = [item for item in declared.establishes if item.element == "wordpress.content"]
    assert repair_of(declared, content, known) is None


def test_the_planner_and_the_reconciler_name_an_exception_alike() -> None:

    row = drifted(seen("draft")).row
    assert row.obligation_id is not None
    event = word(row, "EXECUTING").evolve(exception_id=exception_id(row.obligation_id))
    assert repairs.heard(row, event, now=at(200), budget=BUDGET).changed
