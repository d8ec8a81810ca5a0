"""Governance state that every service watches: revocations, freezes and the policy in force (pure)."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from trueup_common.contracts.canonical import digest
from trueup_common.contracts.shape import ForwardContract, Instant

STALE_AFTER_SECONDS: Final = 5.0

POLICY: Final = "policy"
FREEZE: Final = "freeze"
BREAK_GLASS: Final = "break_glass"
"""Lets effects of its scope through every freeze, for a limited time."""


class FreezeScope(ForwardContract):
    """What a freeze holds back; None covers everything. `compensation=True` names compensations too."""

    tenant: str | None = None
    system: str | None = None
    command_type: str | None = None
    definition: str | None = None
    version: int | None = None
    compensation: bool = False


class GovernanceEntry(ForwardContract):
    """One active entry: `kind` ∈ revoked_decision, revoked_capability, revoked_mandate, freeze, break_glass, policy."""

    kind: str
    id: str
    epoch: int
    scope: FreezeScope | None = None
    policy_sha256: str | None = None
    expires_at: Instant | None = None


def key_of(entry: GovernanceEntry) -> str:
    """The KV key of an entry."""
    return f"{entry.kind}.{entry.id}"


def digest_of(entries: Mapping[str, GovernanceEntry] | Iterable[str]) -> str:
    """Digest of an active set: its keys, sorted."""
    return digest(sorted(entries))


Held = tuple[str, str, FreezeScope, Instant | None]
"""(kind, id, scope, expiry) of a freeze or of a broken glass."""


def held_by(held: Iterable[Held], fields: Mapping[str, Any], now: Instant, *, compensation: bool = False) -> str | None:
    """The id of a freeze that holds back an effect with these fields; None where none does, or a glass was broken."""
    found: str | None = None
    for kind, name, scope, expires_at in held:
        if (expires_at is not None and expires_at <= now) or not covers(scope, fields, compensation=compensation):
            continue
        if kind == BREAK_GLASS:
            return None
        found = found or name
    return found


def covers(scope: FreezeScope, fields: Mapping[str, Any], *, compensation: bool = False) -> bool:
    """True where a freeze of `scope` holds back an effect with these fields (tenant, system, command_type, ...)."""
    if compensation and not scope.compensation:
        return False
    named = {
        "tenant": scope.tenant,
        "system": scope.system,
        "command_type": scope.command_type,
        "definition": scope.definition,
        "version": scope.version,
    }
    return all(value is None or fields.get(name) == value for name, value in named.items())
