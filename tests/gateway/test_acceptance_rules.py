"""The pure rule of acceptance: whatever waits together, keys, identities and uses hold."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.edge import DRAFT, POST, UPDATE
from tests.gateway.test_capability_rules import DECISION, NOW

from trueup_common.contracts.states import CompensationState, OperationState
from trueup_gateway.core.acceptance import (
    Accepted,
    Edge,
    Known,
    Replayed,
    Standing,
    Submission,
    decide,
    identity_of,
    is_free,
)
from trueup_gateway.core.refusal import Refused


def standing(name: str, uses_left: int = 1, **changes: Any) -> Standing:
    base = Standing(
        capability_id=name,
        tenant="acme",
        subject="agent:a",
        uses_left=uses_left,
        revoked=False,
        expires_at=NOW + timedelta(hours=1),
        decision=DECISION,
    )
    return replace(base, **changes)


def submission(number: int = 0, **changes: Any) -> Submission:
    base = Submission(
        tenant="acme",
        key="k",
        fingerprint="f",
        identity=None,
        capability_id="cap",
        command_type="wordpress.a",
        declaration=DRAFT,
        system="wordpress",
        resource="post",
        expected_version=None,
        payload={},
        payload_sha256="p",
        workflow_id=f"wf_{number}",
        saga_id=f"saga_{number}",
        command_id=f"cmd_{number}",
    )
    return replace(base, **changes)


def known(standings: dict[str, Standing], edges: tuple[Edge, ...] = (), **changes: Any) -> Known:
    base = Known(
        now=NOW,
        standings=standings,
        by_key={(edge.tenant, edge.key): edge for edge in edges},
        by_identity={(edge.tenant, edge.identity): edge for edge in edges if edge.identity},
        frozen=lambda _: None,
        permitted=lambda *_: True,
    )
    return replace(base, **changes)


SUBMISSIONS = st.lists(
    st.tuples(
        st.sampled_from(["k1", "k2", "k3"]),
        st.sampled_from(["f1", "f2"]),
        st.sampled_from([None, "i1", "i2"]),
        st.sampled_from(["cap1", "cap2"]),
    ),
    max_size=25,
)


@given(SUBMISSIONS, st.integers(0, 4), st.integers(0, 4))
def test_keys_identities_and_uses_hold_in_any_batch(
    wanted: list[tuple[str, str, str | None, str]], uses_1: int, uses_2: int
) -> None:
    """Each key and identity is accepted once, no capability beyond its uses, and every replay names its first.

    Requirements: I1, I2, G3
    """
    batch = [
        submission(number, key=key, fingerprint=fingerprint, identity=identity, capability_id=capability)
        for number, (key, fingerprint, identity, capability) in enumerate(wanted)
    ]
    uses = {"cap1": uses_1, "cap2": uses_2}
    verdicts = decide(batch, known({name: standing(name, count) for name, count in uses.items()}))
    accepted = [verdict.submission for verdict in verdicts if isinstance(verdict, Accepted)]
    assert len({item.key for item in accepted}) == len(accepted)
    identities = [item.identity for item in accepted if item.identity]
    assert len(set(identities)) == len(identities)
    spent = Counter(item.capability_id for item in accepted)
    assert all(spent[name] <= count for name, count in uses.items())
    first = {item.key: item for item in accepted}
    for item, verdict in zip(batch, verdicts, strict=True):
        if isinstance(verdict, Replayed):
            assert verdict.edge.command_id == first[item.key].command_id
            assert verdict.edge.fingerprint == item.fingerprint
        elif isinstance(verdict, Refused) and verdict.check == "uses":
            assert spent[item.capability_id] == uses[item.capability_id]


EDGE = Edge("acme", "k", "f", None, "cmd_old", "wf_old", "saga_old", "RUNNING")

ORDER: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[int, str, str | None]]] = {
    "a capability that nobody knows": ({"capability_id": "other"}, {}, (403, "forbidden", "revoked")),
    "a capability of another tenant": ({"tenant": "globex"}, {}, (403, "forbidden", "revoked")),
    "revoked": ({}, {"revoked": True}, (403, "forbidden", "revoked")),
    "expired": ({}, {"expires_at": NOW}, (401, "unauthorized", "time")),
    "decision revoked": ({}, {"decision": DECISION.evolve(revoked_at=NOW)}, (403, "forbidden", "revoked")),
    "decision expired": ({}, {"decision": DECISION.evolve(expires_at=NOW)}, (403, "forbidden", "decision")),
    "decision denied": ({}, {"decision": DECISION.evolve(outcome="denied")}, (403, "forbidden", "decision")),
    "approval missing": (
        {},
        {"decision": DECISION.evolve(outcome="approval_required")},
        (403, "forbidden", "approval"),
    ),
}


@pytest.mark.parametrize("name", ORDER)
@pytest.mark.parametrize("replay", [False, True])
def test_a_replay_skips_no_check_but_the_uses(name: str, replay: bool) -> None:
    """Authority is checked for repetitions exactly as for first requests.

    Requirements: G4, I2
    """
    changes, row, (status, slug, check) = ORDER[name]
    edges = (EDGE, replace(EDGE, tenant="globex")) if replay else ()
    (verdict,) = decide([submission(**changes)], known({"cap": standing("cap", **row)}, edges))
    assert isinstance(verdict, Refused)
    assert (verdict.problem.status, verdict.problem.slug, verdict.check) == (status, slug, check)


def test_policy_and_freezes_are_checks_too() -> None:
    """Both stop first requests and repetitions.

    Requirements: G5, G6
    """
    for edges in ((), (EDGE,)):
        (frozen,) = decide([submission()], known({"cap": standing("cap")}, edges, frozen=lambda _: "frz_1"))
        (denied,) = decide([submission()], known({"cap": standing("cap")}, edges, permitted=lambda *_: False))
        assert isinstance(frozen, Refused) and isinstance(denied, Refused)
        assert (frozen.check, denied.check) == ("frozen", "policy")


def test_a_replay_needs_no_use_and_no_time() -> None:
    """A spent capability and a passed deadline do not hide the stored answer.

    Requirements: I2
    """
    late = submission(deadline_at=NOW - timedelta(seconds=1))
    (verdict,) = decide([late], known({"cap": standing("cap", 0)}, (EDGE,)))
    assert verdict == Replayed(EDGE)
    (fresh,) = decide([late], known({"cap": standing("cap", 1)}))
    assert isinstance(fresh, Refused) and fresh.errors[0][0] == "/deadline"


def test_identity_follows_the_declared_pointers() -> None:
    """What the type names, and only that; absent values identify nothing; types do not share identities.

    Requirements: I2, X8
    """
    target = {"system": "wordpress", "resource": "post"}
    first = identity_of(DRAFT, target, {"slug": "a", "title": "x"})
    assert first is not None and first == identity_of(
        DRAFT, {"system": "wordpress", "resource": "post/2"}, {"slug": "a"}
    )
    assert first != identity_of(DRAFT, target, {"slug": "b"})
    assert identity_of(DRAFT, target, {}) is None and identity_of(POST, target, {"slug": "a"}) is None
    other = UPDATE.model_copy(update={"identity": ("/payload/slug",)})
    assert identity_of(other, target, {"slug": "a"}) != first


def test_only_what_left_nothing_in_the_world_lets_go() -> None:
    """A success keeps its identity until it is compensated; unknown and undecided states keep it.

    Requirements: I2
    """
    free = {state for state in OperationState if is_free(state, CompensationState.NONE)}
    assert free == {"FAILED", "CANCELLED", "CONFLICT", "RESOLVED"}
    assert is_free(OperationState.SUCCESS, CompensationState.COMPENSATED)
    assert not is_free(OperationState.SUCCESS, CompensationState.COMPENSATION_UNKNOWN)


def test_a_key_stands_for_one_request() -> None:
    """Another fingerprint under an accepted key is refused, whether the key was accepted before or in this batch.

    Requirements: I2
    """
    other = submission(1, fingerprint="other")
    (stored,) = decide([other], known({"cap": standing("cap", 2)}, (EDGE,)))
    first, second = decide([submission(), other], known({"cap": standing("cap", 2)}))
    assert isinstance(first, Accepted)
    for verdict in (stored, second):
        assert isinstance(verdict, Refused)
        assert (verdict.problem.status, verdict.problem.slug) == (422, "idempotency-key-reused")
