"""Comparing, freezing, granting, classifying: small pure functions that every service decides with."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.common.json_values import VALUES

from trueup_common.contracts import grant
from trueup_common.contracts.compare import NORMALISERS, phase_of, same
from trueup_common.contracts.failures import BY_ERROR_CLASS, failure_class
from trueup_common.contracts.governance import FreezeScope, GovernanceEntry, covers, digest_of, key_of
from trueup_common.contracts.states import ErrorClass, FailureClass, Phase, ProbeVerdict
from trueup_common.contracts.task import ExecuteTask, Operation, Target

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


# --- compare ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("normaliser", "desired", "observed", "equal"),
    [
        ("exact", {"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ("exact", "a", "a ", False),
        ("exact", 1, True, False),
        ("exact", 1, "1", False),
        ("exact", 1, 1.0, True),
        ("exact", [1, 2], [2, 1], False),
        ("exact", None, "", False),
        ("text", " a\n b ", "a b", True),
        ("text", "a b", "ab", False),
        ("text", "A", "a", False),
        ("html_text", "Tom & Jerry", "<p>Tom &amp; Jerry</p>\n", True),
        ("html_text", "a b", "<p>a<br />b</p>", True),
        ("html_text", "a", "<!-- wp:paragraph --><p>a</p><!-- /wp:paragraph -->", True),
        ("html_text", "a", "<p>b</p>", False),
        ("html_text", "<script>x</script>", "x", False),
        ("unordered", [1, {"a": 2}, "x"], ["x", 1, {"a": 2}], True),
        ("unordered", [1, 1, 2], [1, 2, 2], False),
        ("unordered", [1], 1, False),
    ],
)
def test_a_normaliser_forgives_what_the_target_may_rewrite_and_nothing_else(
    normaliser: str, desired: Any, observed: Any, equal: bool
) -> None:
    assert same(normaliser, desired, observed) is equal
    assert same(normaliser, observed, desired) is equal


@settings(max_examples=200, deadline=None)
@given(value=VALUES, normaliser=st.sampled_from(sorted(NORMALISERS)))
def test_every_value_equals_itself_under_every_normaliser(value: Any, normaliser: str) -> None:
    assert same(normaliser, value, value)


def test_an_unknown_normaliser_is_an_error_never_equality() -> None:
    with pytest.raises(KeyError):
        same("fuzzy", 1, 1)


@pytest.mark.parametrize(("verdict", "equal", "within"), list(product(ProbeVerdict, [True, False], [True, False])))
def test_the_phase_of_every_observation(verdict: ProbeVerdict, equal: bool, within: bool) -> None:
    """Requirements: R4, E4"""
    phase = phase_of(verdict, equal=equal, within_window=within)
    if verdict is ProbeVerdict.UNKNOWN:
        assert phase is Phase.UNKNOWN
    elif verdict is ProbeVerdict.CONFIRMED and equal:
        assert phase is Phase.HEALTHY
    else:
        assert phase is (Phase.CONVERGING if within else Phase.DRIFT)


# --- freezes ----------------------------------------------------------------------------------------------------------

EFFECT = {
    "tenant": "acme",
    "system": "wordpress",
    "command_type": "wordpress.publish_post",
    "definition": "seo-article-publish",
    "version": 3,
}


def test_a_freeze_covers_what_agrees_with_every_field_it_names() -> None:
    """Requirements: G6"""
    names = list(EFFECT)
    for chosen in product([False, True], repeat=len(names)):
        picked = [name for name, used in zip(names, chosen, strict=True) if used]
        scope = FreezeScope.model_validate({name: EFFECT[name] for name in picked})
        assert covers(scope, EFFECT)
        for name in picked:
            other = {**EFFECT, name: "other" if isinstance(EFFECT[name], str) else 4}
            assert not covers(scope, other)
        for name in set(names) - set(picked):
            assert covers(scope, {**EFFECT, name: "other"})


@pytest.mark.parametrize(
    ("named", "compensation", "held"), [(False, True, False), (True, True, True), (True, False, True)]
)
def test_a_freeze_holds_back_compensations_only_where_it_names_them(
    named: bool, compensation: bool, held: bool
) -> None:
    """Requirements: G6"""
    assert covers(FreezeScope(tenant="acme", compensation=named), EFFECT, compensation=compensation) is held


def test_the_digest_of_the_active_set_depends_on_the_set_and_not_on_its_order() -> None:
    entries = [GovernanceEntry(kind="revoked_decision", id=f"dec_{number}", epoch=number) for number in range(4)]
    keyed = {key_of(entry): entry for entry in entries}
    assert digest_of(keyed) == digest_of(dict(reversed(keyed.items())))
    assert digest_of(keyed) != digest_of(dict(list(keyed.items())[1:]))


# --- grants -----------------------------------------------------------------------------------------------------------


def task(fence: int = 3) -> ExecuteTask:
    return ExecuteTask(
        operation=Operation(
            command_id="cmd_1",
            workflow_id="wf_1",
            tenant="acme",
            command_type="wordpress.publish_post",
            declaration_sha256="d" * 64,
            target=Target(system="wordpress", resource="site", expected_version="v1"),
            payload={},
            payload_sha256="p" * 64,
            idempotency_key="k",
        ),
        fence=fence,
        attempt_id="att_1",
        start_by=NOW + timedelta(seconds=30),
        lease_expires_at=NOW + timedelta(seconds=60),
    )


def claims(**changes: Any) -> grant.GrantClaims:
    known: dict[str, Any] = {
        "iss": grant.ISSUER,
        "aud": "adapter:wordpress",
        "sub": "agent",
        "tenant": "acme",
        "op": "cmd_1",
        "fence": 3,
        "command_type": "wordpress.publish_post",
        "resource": "site",
        "payload_sha256": "p" * 64,
        "expected_version": "v1",
        "declaration_sha256": "d" * 64,
        "decision": "dec_1",
        "mandate": "man_1",
        "capability": "cap_1",
        "policy": "pol",
        "epoch": 5,
        "iat": int(NOW.timestamp()),
        "exp": int(NOW.timestamp()) + 60,
        "jti": "grt_1",
    }
    return grant.GrantClaims.model_validate({**known, **changes})


def test_a_grant_covers_exactly_the_attempt_it_was_minted_for() -> None:
    """Requirements: G5"""
    assert grant.refusal(claims(), task(), now=NOW, epoch_min=5) is None


@pytest.mark.parametrize(
    ("changes", "check"),
    [
        ({"iss": "someone"}, "issuer"),
        ({"aud": "adapter:github"}, "audience"),
        ({"tenant": "globex"}, "tenant"),
        ({"op": "cmd_2"}, "operation"),
        ({"fence": 2}, "fence"),
        ({"fence": 4}, "fence"),
        ({"command_type": "wordpress.trash_post"}, "command_type"),
        ({"resource": "other"}, "resource"),
        ({"payload_sha256": "q" * 64}, "payload_hash"),
        ({"expected_version": None}, "resource_version"),
        ({"expected_version": "v2"}, "resource_version"),
        ({"declaration_sha256": "e" * 64}, "declaration"),
        ({"epoch": 4}, "epoch"),
        ({"exp": int(NOW.timestamp())}, "time"),
        ({"iat": int(NOW.timestamp()) + 10}, "time"),
    ],
)
def test_a_grant_for_anything_else_is_refused_by_the_check_that_fails(changes: dict[str, Any], check: str) -> None:
    """Requirements: G1, G5"""
    assert grant.refusal(claims(**changes), task(), now=NOW, epoch_min=5) == check


@pytest.mark.parametrize(
    "missing", sorted(set(claims().model_dump()) - {"expected_version", "approval", "compensation"})
)
def test_a_grant_without_an_essential_claim_is_not_readable(missing: str) -> None:
    """Requirements: G1"""
    known = claims().model_dump()
    del known[missing]
    assert grant.read_claims(known) == "claims"
    assert grant.read_claims({**claims().model_dump(), "admin": True}) == "claims"


# --- failures ---------------------------------------------------------------------------------------------------------


def test_every_error_class_has_a_failure_class_and_nothing_known_is_still_unknown() -> None:
    """Requirements: Q3"""
    assert set(BY_ERROR_CLASS) == set(ErrorClass)
    assert failure_class(None, None) is FailureClass.TIMEOUT_UNKNOWN
    assert failure_class(ErrorClass.PERMANENT, "unauthenticated") is FailureClass.AUTH_ERROR
    assert failure_class(ErrorClass.PERMANENT, "never heard of") is FailureClass.DATA_ERROR
