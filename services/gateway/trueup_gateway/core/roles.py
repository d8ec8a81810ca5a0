"""Who may do what. A table: no role implies another, and `admin` neither reads nor acts.

Three views are three rights. READ_TENANT shows that things are, where they stand and what went wrong (operations);
VIEW_BUSINESS what they say: payloads, results, observed values, artifacts; VIEW_AUDIT what people did and under which
authority: acts, their decisions, capabilities. Each sees their own acts. What a view leaves out: `core/withholding.py`.
"""

from collections.abc import Collection
from typing import Final

READ_OWN: Final = "read_own"
READ_TENANT: Final = "read_tenant"
VIEW_BUSINESS: Final = "view_business"
VIEW_AUDIT: Final = "view_audit"
LEGAL_HOLD: Final = "legal_hold"
REVOKE_OWN: Final = "revoke_own"
REVOKE_TENANT: Final = "revoke_tenant"
FREEZE: Final = "freeze"
READ_CONTROLS: Final = "read_controls"
CHANGE_POLICY: Final = "change_policy"
DEFINE: Final = "define"
APPROVE: Final = "approve"
READ_APPROVALS: Final = "read_approvals"
SIGNAL_OWN: Final = "signal_own"
SIGNAL_TENANT: Final = "signal_tenant"
OPERATE: Final = "operate"
CANCEL_OWN: Final = "cancel_own"
REPAIR: Final = "repair"
BREAK_GLASS: Final = "break_glass"
STORE_ARTIFACT: Final = "store_artifact"
DELETE_ARTIFACT: Final = "delete_artifact"

ROLES: Final = ("agent", "viewer", "operator", "approver", "admin", "auditor", "repairer")

RIGHTS: Final[dict[str, frozenset[str]]] = {
    READ_OWN: frozenset({"agent", "repairer"}),
    READ_TENANT: frozenset({"viewer", "operator", "auditor"}),
    VIEW_BUSINESS: frozenset({"agent", "repairer", "viewer", "operator", "approver"}),
    VIEW_AUDIT: frozenset({"operator", "auditor"}),
    LEGAL_HOLD: frozenset({"auditor", "admin"}),
    REVOKE_OWN: frozenset({"agent"}),
    REVOKE_TENANT: frozenset({"operator", "admin"}),
    FREEZE: frozenset({"operator", "admin"}),
    READ_CONTROLS: frozenset({"viewer", "operator", "auditor", "admin"}),
    CHANGE_POLICY: frozenset({"admin"}),
    DEFINE: frozenset({"operator", "admin"}),
    APPROVE: frozenset({"approver"}),
    READ_APPROVALS: frozenset({"approver", "viewer", "operator", "auditor"}),
    SIGNAL_OWN: frozenset({"agent"}),
    SIGNAL_TENANT: frozenset({"operator"}),
    STORE_ARTIFACT: frozenset({"agent", "operator"}),
    DELETE_ARTIFACT: frozenset({"operator"}),
    OPERATE: frozenset({"operator"}),
    CANCEL_OWN: frozenset({"agent"}),
    REPAIR: frozenset({"repairer"}),
    BREAK_GLASS: frozenset({"operator"}),
}


def may(roles: Collection[str], right: str) -> bool:
    """True where one of the roles holds the right."""
    return not RIGHTS[right].isdisjoint(roles)


def only_own(roles: Collection[str], subject: str) -> str | None:
    """The only one whose objects the caller may name; None where that is everybody's of the tenant."""
    return None if may(roles, READ_TENANT) else subject


def needed(right: str) -> str:
    """The roles that hold a right, for the refusal's detail."""
    return ", ".join(sorted(RIGHTS[right]))
