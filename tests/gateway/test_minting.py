"""Minting, bound by bound: of a sound proposal one thing is changed, and exactly the check for it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.gateway.edge import DRAFT, PUBLISH, TRASH, UPDATE
from tests.gateway.test_workflow_grants import (
    CONTENT,
    DECISION,
    MANDATE,
    NOW,
    POLICY,
    WORKFLOW,
    approval,
    ask,
    request_of,
)

from trueup_common.contracts.events import GrantRequest, Mandate
from trueup_common.contracts.grant import GrantClaims
from trueup_common.contracts.states import EffectClass
from trueup_common.runtime.clock import real_now
from trueup_gateway.core.grants import Facts, Refusal, mint

CARRIED = Mandate(**{name: getattr(MANDATE, name) for name in Mandate.model_fields})
ROW = approval(WORKFLOW, "a")


def draft(**changes: Any) -> tuple[GrantRequest, Facts]:
    """A harmless step."""
    return request_of(CARRIED, WORKFLOW, DRAFT.type, **changes), Facts(
        MANDATE, DECISION, False, DRAFT, None, True, POLICY.sha256, 1
    )


def pivot(**changes: Any) -> tuple[GrantRequest, Facts]:
    """The step that needs a person's approval."""
    payload = {"content_sha256": CONTENT}
    fields = {"step": "publish", "payload": payload, "approval_id": ROW.approval_id, **changes}
    request = request_of(CARRIED, WORKFLOW, PUBLISH.type, **fields)
    return request, Facts(MANDATE, DECISION, False, PUBLISH, None, True, POLICY.sha256, 1, approval=ROW)


def undoing(**changes: Any) -> tuple[GrantRequest, Facts]:
    """The declared compensation of the draft."""
    fields = {"compensation": True, "compensates_type": DRAFT.type, **changes}
    request = request_of(CARRIED, WORKFLOW, TRASH.type, **fields)
    return request, Facts(MANDATE, DECISION, False, TRASH, None, True, POLICY.sha256, 1, undoes=DRAFT)


def check(request: GrantRequest, facts: Facts) -> str | None:
    """The check that refuses; None for a grant."""
    found = mint(request, facts, now=NOW, real=real_now(), ask=ask)
    assert isinstance(found, Refusal | GrantClaims)
    return found.check if isinstance(found, Refusal) else None


def test_the_sound_proposals_are_granted() -> None:
    """What the cases below change one thing of."""
    assert [check(*sound()) for sound in (draft, pivot, undoing)] == [None, None, None]


ROWS: dict[str, tuple[dict[str, Any], str]] = {
    "no mandate": ({"mandate": None}, "mandate"),
    "another tenant's mandate": ({"mandate": MANDATE.evolve(tenant="globex")}, "mandate"),
    "another case's mandate": ({"mandate": MANDATE.evolve(workflow_id="wf_" + "2" * 32)}, "mandate"),
    "no decision": ({"decision": None}, "decision"),
    "another document": ({"mandate": MANDATE.evolve(document_sha256="0" * 64)}, "document"),
    "mandate revoked": ({"mandate": MANDATE.evolve(revoked_at=NOW)}, "revoked"),
    "decision revoked": ({"decision": DECISION.evolve(revoked_at=NOW)}, "revoked"),
    "capability revoked": ({"capability_revoked": True}, "revoked"),
    "mandate expired": ({"mandate": MANDATE.evolve(expires_at=NOW)}, "mandate"),
    "another operation": ({"mandate": MANDATE.evolve(command_id="cmd_other")}, "operation"),
    "type not covered": ({"mandate": MANDATE.evolve(command_types=[PUBLISH.type])}, "command_type"),
    "another system": ({"mandate": MANDATE.evolve(system="github")}, "resource"),
    "another resource": ({"mandate": MANDATE.evolve(resource="page/*")}, "resource"),
    "outside of what was decided": (
        {"mandate": MANDATE.evolve(within_system=DRAFT.system, within_resource="page/*")},
        "resource",
    ),
    "bound to another payload": ({"mandate": MANDATE.evolve(payload_sha256="0" * 64)}, "payload_hash"),
    "effects used up": ({"effects": frozenset({"a", "b", "c"})}, "uses"),
    "graver than permitted": ({"mandate": MANDATE.evolve(effect_class_max=EffectClass.READ)}, "policy"),
    "another declaration": ({"declaration": UPDATE}, "declaration"),
    "declaration not pinned": ({"mandate": MANDATE.evolve(declarations={})}, "declaration"),
    "frozen": ({"freeze": "frz_1"}, "frozen"),
    "no key": ({"has_key": False}, "audience"),
    "no declaration": ({"declaration": None}, "declaration"),
}


@pytest.mark.parametrize("name", ROWS)
def test_each_bound_refuses_alone(name: str) -> None:
    """One row says no, and everything else would have said yes.

    Requirements: G5, T1, L3
    """
    request, facts = draft()
    changes, wanted = ROWS[name]
    assert check(request, replace(facts, **changes)) == wanted


APPROVALS: dict[str, dict[str, Any]] = {
    "pending": {"status": "pending"},
    "rejected": {"status": "rejected"},
    "expired": {"status": "expired"},
    "superseded": {"status": "superseded"},
    "of another tenant": {"tenant": "globex"},
    "of another case": {"workflow_id": "wf_" + "2" * 32},
    "of an intent": {"kind": "decision"},
    "another one": {"approval_id": "apr_other"},
    "for another document": {"document_sha256": "0" * 64},
    "for another content": {"binds": ["d" * 64]},
}


@pytest.mark.parametrize("name", APPROVALS)
def test_each_flaw_of_an_approval_refuses_alone(name: str) -> None:
    """Given, for this case, this document and exactly this content: anything less is no approval.

    Requirements: S6, G5
    """
    request, facts = pivot()
    assert check(request, replace(facts, approval=ROW.evolve(**APPROVALS[name]))) == "approval"
    assert check(request, replace(facts, approval=None)) == "approval"
    assert check(*pivot(approval_id=None)) == "approval"


def test_the_payload_is_what_its_hash_says() -> None:
    """An approved hash beside a swapped payload is noticed where the grant is minted.

    Requirements: G5
    """
    assert check(*pivot(payload_sha256="0" * 64)) == "payload_hash"


def test_a_compensation_is_the_declared_one_and_outlives_the_authority() -> None:
    """It undoes what the mandate covers, as that type declares it; neither revocation nor the mandate's end stops it.

    Requirements: S4, G6
    """
    request, facts = undoing()
    gone = replace(
        facts, mandate=MANDATE.evolve(revoked_at=NOW, expires_at=NOW), decision=DECISION.evolve(revoked_at=NOW)
    )
    assert check(request, gone) is None
    assert check(request, replace(facts, undoes=UPDATE)) == "command_type"
    assert check(request, replace(facts, undoes=PUBLISH)) == "command_type"
    assert check(request, replace(facts, undoes=None)) == "declaration"
    assert check(*undoing(compensates_type=None)) == "command_type"
    other = request_of(CARRIED, WORKFLOW, UPDATE.type, compensation=True, compensates_type=DRAFT.type)
    assert check(other, replace(facts, declaration=UPDATE)) == "command_type"
    assert check(request, replace(facts, freeze="frz_1")) == "frozen"
