"""The grant at the last boundary: genuine, for exactly this attempt, and not taken back."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from tests.adapters.builders import DECLARATION, declare, execute, operation
from tests.adapters.memory import START

from trueup_adapters.authority import GrantAuthority
from trueup_common.contracts.declaration import CommandDeclaration
from trueup_common.contracts.governance import FreezeScope, covers
from trueup_common.contracts.grant import ISSUER, GrantClaims, audience
from trueup_common.contracts.states import RiskLevel
from trueup_common.contracts.task import ExecuteTask
from trueup_common.runtime.grants import GrantKeys


def keys(letter: str = "k") -> GrantKeys:
    return GrantKeys.read(json.dumps({"alpha": base64.urlsafe_b64encode(letter.encode() * 32).decode()}))


class Governance:
    """What is revoked and frozen."""

    def __init__(self) -> None:
        self.stale = False
        self.gone: set[tuple[str, str]] = set()
        self.freeze: FreezeScope | None = None

    def revoked(self, kind: str, object_id: str | None) -> bool:
        return (kind, str(object_id)) in self.gone

    def freeze_of(self, fields: Mapping[str, Any], *, compensation: bool = False) -> Any:
        frozen = self.freeze is not None and covers(self.freeze, fields, compensation=compensation)
        return self.freeze if frozen else None


def claims(task: ExecuteTask, **changes: Any) -> GrantClaims:
    about = task.operation
    values: dict[str, Any] = {
        "iss": ISSUER,
        "aud": audience("alpha"),
        "sub": "agent:x",
        "tenant": about.tenant,
        "op": about.command_id,
        "fence": task.fence,
        "command_type": about.command_type,
        "resource": about.target.resource,
        "payload_sha256": about.payload_sha256,
        "expected_version": about.target.expected_version,
        "declaration_sha256": about.declaration_sha256,
        "decision": "dec_1",
        "mandate": "man_1",
        "capability": "cap_1",
        "policy": "p",
        "epoch": 3,
        "iat": int(START.timestamp()) - 5,
        "exp": int(START.timestamp()) + 60,
        "jti": "grt_1",
        **changes,
    }
    return GrantClaims(**values)


def check(
    governance: Governance | None = None,
    *,
    declaration: CommandDeclaration = DECLARATION,
    signer: GrantKeys | None = None,
    task: dict[str, Any] | None = None,
    seconds: float = 0,
    **changes: Any,
) -> GrantClaims | str:
    asked = execute(1, **(task or {}))
    grant = (signer or keys()).sign("alpha", claims(asked, **changes))
    authority = GrantAuthority(keys(), governance or Governance())
    return authority.check(asked.evolve(grant=grant), declaration, START + timedelta(seconds=seconds))


def test_a_fitting_grant_is_taken() -> None:
    """Requirements: G5."""
    granted = check()
    assert isinstance(granted, GrantClaims)
    assert granted.jti == "grt_1"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"aud": audience("beta")}, "grant_audience"),
        ({"tenant": "globex"}, "grant_tenant"),
        ({"op": "cmd_2"}, "grant_operation"),
        ({"fence": 2}, "grant_fence"),
        ({"command_type": "alpha.drop"}, "grant_command_type"),
        ({"resource": "other"}, "grant_resource"),
        ({"payload_sha256": "0" * 64}, "grant_payload_hash"),
        ({"expected_version": "7"}, "grant_resource_version"),
        ({"declaration_sha256": "0" * 64}, "grant_declaration"),
        ({"exp": int(START.timestamp())}, "grant_time"),
        ({"iss": "somebody"}, "grant_issuer"),
    ],
)
def test_a_grant_covers_exactly_one_attempt(changes: dict[str, Any], code: str) -> None:
    """Requirements: G1, G5. Anything else than this attempt of this operation with this payload is refused."""
    assert check(**changes) == code


def test_a_forged_grant_is_refused() -> None:
    """Requirements: G1. Another key, or none at all."""
    assert check(signer=keys("x")) == "grant_signature"
    asked = execute(1, grant="")
    assert GrantAuthority(keys(), Governance()).check(asked, DECLARATION, START) == "grant_signature"


def test_a_payload_that_does_not_match_its_hash_is_refused() -> None:
    """Requirements: G5. The grant names a hash; the payload that would be sent must have it."""
    swapped = operation().evolve(payload={"text": "something else"})
    assert check(task={"of": swapped}) == "payload_hash"


def test_a_grant_below_the_minimum_epoch_is_refused() -> None:
    """Requirements: G6."""
    assert check(task={"min_epoch": 4}) == "grant_epoch"


@pytest.mark.parametrize("kind", ["decision", "capability", "mandate"])
def test_what_was_revoked_is_not_sent(kind: str) -> None:
    """Requirements: G5, G6. Except that a compensation goes on: it undoes what the revoked authority did."""
    governance = Governance()
    governance.gone = {(kind, {"decision": "dec_1", "capability": "cap_1", "mandate": "man_1"}[kind])}
    assert check(governance) == "revoked"
    assert isinstance(check(governance, compensation=True), GrantClaims)


def test_a_freeze_holds_back() -> None:
    """Requirements: G6. A compensation is held back only by a freeze that names it."""
    governance = Governance()
    governance.freeze = FreezeScope(tenant="acme")
    assert check(governance) == "frozen"
    assert isinstance(check(governance, compensation=True), GrantClaims)
    governance.freeze = FreezeScope(system="alpha", compensation=True)
    assert check(governance, compensation=True) == "frozen"
    governance.freeze = FreezeScope(tenant="globex")
    assert isinstance(check(governance), GrantClaims)


def test_stale_governance_stops_high_risk_only() -> None:
    """Requirements: G6. Failing closed where it matters, going on where it does not."""
    governance = Governance()
    governance.stale = True
    assert isinstance(check(governance), GrantClaims)
    risky = declare(risk=RiskLevel.HIGH)
    assert check(governance, declaration=risky) == "governance_stale"
