"""Governance state that every service watches: revocations, freezes and the policy in force (pure)."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from trueup_common.contracts.canonical import digest
from trueup_common.contracts.shape import ForwardContract, Instant

STALE_AFTER_SECONDS: Final = 5.0


class FreezeScope(ForwardContract):
    """What a freeze holds back; None covers everything. `compensation=True` names compensations too."""

    tenant: str | None = None
    system: str | None = None
    command_type: str | None = None
    definition: str | None = None
    version: int | None = None
    compensation: bool = False


class GovernanceEntry(ForwardContract):
    """One active entry: `kind` ∈ revoked_decision, revoked_capability, revoked_mandate, freeze, policy."""

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
