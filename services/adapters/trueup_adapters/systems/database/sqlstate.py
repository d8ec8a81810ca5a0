"""What an error of PostgreSQL means for a write. Two tables, because COMMIT divides the world.

Before COMMIT has left nothing has happened, whatever the error: the table says whether trying again can help. Once
COMMIT has left, only an error that PostgreSQL raises while it still can abort says "not done"; every other end is
UNKNOWN, a server that shuts down during COMMIT above all.
"""

from typing import Final

from trueup_common.contracts.adapter import Outcome, rejected, unknown
from trueup_common.contracts.states import ErrorClass

_T, _P, _B = ErrorClass.TRANSIENT, ErrorClass.PERMANENT, ErrorClass.BUSINESS
_STATE, _CLASS = 5, 2

MEANING: Final[dict[str, tuple[ErrorClass, str]]] = {
    "08": (_T, "connection_lost"),
    "22": (_P, "payload_invalid"),
    "23": (_P, "constraint_violated"),
    "25": (_T, "rolled_back"),
    "25006": (_T, "read_only"),  # a replica, or a server in maintenance
    "28": (_P, "unauthenticated"),
    "3D": (_P, "database_missing"),
    "3F": (_P, "schema_missing"),
    "40001": (_T, "serialization_failure"),
    "40P01": (_T, "deadlock_detected"),
    "40": (_T, "rolled_back"),
    "42501": (_P, "forbidden"),
    "42P01": (_P, "schema_missing"),
    "42703": (_P, "schema_missing"),
    "42P10": (_P, "schema_missing"),  # the unique key that the publication's identity rests on
    "42804": (_P, "schema_missing"),
    "42": (_P, "refused"),
    "44": (_P, "constraint_violated"),
    "53300": (_T, "too_many_connections"),
    "53": (_T, "unavailable"),
    "54": (_P, "payload_invalid"),
    "55P03": (_T, "locked"),
    "57014": (_T, "statement_timeout"),
    "57": (_T, "unavailable"),
    "P0": (_B, "refused"),  # a trigger of the customer says no
}
"""By SQLSTATE, else by its class. What is not here is transient: attempts are bounded and then a person owns it."""

NOT_COMMITTED: Final = ("22", "23", "25", "40", "42", "44", "53", "54", "55P03", "57014", "P0")
"""Errors in answer to COMMIT by which PostgreSQL says that it has rolled back."""
PERHAPS_COMMITTED: Final = ("40003",)
FATAL: Final = ("FATAL", "PANIC")


def meaning(sqlstate: str | None) -> tuple[ErrorClass, str]:
    """Class and code of an error before COMMIT."""
    state = sqlstate or ""
    return MEANING.get(state[:_STATE]) or MEANING.get(state[:_CLASS]) or (_T, "target_failed")


def classify_sqlstate(sqlstate: str | None, severity: str | None, *, commit_left: bool, detail: str = "") -> Outcome:
    """What an error of the server means for the transaction it was raised in."""
    state = sqlstate or ""
    error_class, code = meaning(state)
    if commit_left:
        rolled_back = state.startswith(NOT_COMMITTED) and state not in PERHAPS_COMMITTED and severity not in FATAL
        if not rolled_back:
            lost = severity in FATAL or state.startswith(("08", "57P"))
            return unknown("connection_lost" if lost else "target_failed", detail, external_status=state or None)
    return rejected(error_class, code, detail, external_status=state or None)


def classify_tag(tag: str) -> Outcome | None:
    """What the answer to COMMIT says: None for success. PostgreSQL answers ROLLBACK, without an error, where the
    transaction had failed before."""
    if tag == "COMMIT":
        return None
    if tag == "ROLLBACK":
        return rejected(_T, "rolled_back", "the server rolled back instead of committing", external_status=tag)
    return unknown("answer_unreadable", f"COMMIT was answered with {tag[:100]!r}")
