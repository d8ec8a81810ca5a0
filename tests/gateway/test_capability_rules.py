"""Capabilities are never wider than their decision, requests never wider than their capability."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueup_common.contracts.resource import covers
from trueup_common.contracts.states import EffectClass, RiskLevel
from trueup_common.runtime.clock import real_now
from trueup_gateway.core.capability import Wanted, narrow
from trueup_gateway.core.records import DecisionRow
from trueup_gateway.core.refusal import Refused

NOW = real_now()
DECISION = DecisionRow(
    decision_id="dec_1",
    tenant="acme",
    subject="agent:a",
    roles=["agent"],
    command_types=["wordpress.a", "wordpress.b"],
    system="wordpress",
    resource="post/*",
    purpose="x",
    declarations={},
    effect_class_max=EffectClass.COMPENSABLE,
    outcome="approved",
    risk_score=1,
    risk_level=RiskLevel.LOW,
    risk_factors=[],
    policy_version=1,
    policy_sha256="p",
    determining_policies=[],
    created_at=NOW,
    expires_at=NOW + timedelta(hours=1),
)

COVERS = [
    ("post/*", "post", True),
    ("post/*", "post/1", True),
    ("post/*", "post/1/meta", True),
    ("post/*", "post/*", True),
    ("post/*", "post/1/*", True),
    ("post/*", "posts", False),
    ("post/*", "pos", False),
    ("post/*", "page/1", False),
    ("post/*", "post/../page", False),
    ("post/*", "post//1", False),
    ("post/*", "post/", False),
    ("post/*", "*", False),
    ("post/1/*", "post/*", False),
    ("post/1", "post/1", True),
    ("post/1", "post/1/meta", False),
    ("post", "post/*", False),
    ("*", "anything/at/all", True),
    ("post/*", "POST/1", False),
]


@pytest.mark.parametrize(("pattern", "resource", "expected"), COVERS)
def test_what_a_pattern_covers(pattern: str, resource: str, expected: bool) -> None:
    """`x/*` covers x and everything below it, and nothing that only looks like it.

    Requirements: G3
    """
    assert covers(pattern, resource) is expected


_PARTS = st.sampled_from(["a", "b", "*", "ab"])
_PATHS = st.lists(_PARTS, min_size=1, max_size=3).map("/".join)


@given(_PATHS, _PATHS, _PATHS)
def test_narrowing_is_transitive(wide: str, narrower: str, resource: str) -> None:
    """What a narrower pattern covers, the wider one covers too."""
    if covers(wide, narrower) and covers(narrower, resource):
        assert covers(wide, resource)


WIDER: dict[str, tuple[Wanted, dict[str, object], str]] = {
    "a foreign type": (Wanted(1, 60, command_types=("wordpress.c",)), {}, "command_type"),
    "a foreign type among others": (Wanted(1, 60, command_types=("wordpress.a", "x.y")), {}, "command_type"),
    "everything": (Wanted(1, 60, resource="*"), {}, "resource"),
    "a sibling": (Wanted(1, 60, resource="page/1"), {}, "resource"),
    "another payload": (Wanted(1, 60, payload_sha256="b" * 64), {"payload_sha256": "a" * 64}, "payload_hash"),
    "a denied decision": (Wanted(1, 60), {"outcome": "denied"}, "decision"),
    "an unapproved decision": (Wanted(1, 60), {"outcome": "approval_required"}, "approval"),
    "an expired decision": (Wanted(1, 60), {"expires_at": NOW}, "decision"),
    "a revoked decision": (Wanted(1, 60), {"revoked_at": NOW}, "revoked"),
}


@pytest.mark.parametrize("name", WIDER)
def test_more_than_was_decided_is_refused(name: str) -> None:
    """403 with the bound that was overstepped.

    Requirements: G3
    """
    wanted, changes, check = WIDER[name]
    with pytest.raises(Refused) as caught:
        narrow(DECISION.evolve(**changes), wanted, NOW)
    assert (caught.value.problem.status, caught.value.check) == (403, check)


def test_less_is_granted_and_time_ends_with_the_decision() -> None:
    """Narrower types, resource and payload are kept; the lifetime is cut to the decision's."""
    bounds = narrow(DECISION, Wanted(1, 86400, ("wordpress.a",), "post/1", "c" * 64), NOW)
    assert (bounds.command_types, bounds.resource, bounds.payload_sha256) == (("wordpress.a",), "post/1", "c" * 64)
    assert bounds.expires_at == DECISION.expires_at
    whole = narrow(DECISION.evolve(payload_sha256="a" * 64), Wanted(1, 60), NOW)
    assert (whole.command_types, whole.resource) == (("wordpress.a", "wordpress.b"), "post/*")
    assert whole.payload_sha256 == "a" * 64 and whole.expires_at == NOW + timedelta(seconds=60)
