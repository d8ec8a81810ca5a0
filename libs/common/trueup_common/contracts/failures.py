"""What a failure is: from an error of an attempt to the class an exception is filed under (requirement Q3). A table."""

from typing import Final

from trueup_common.contracts.states import ErrorClass, FailureClass

BY_CODE: Final[dict[str, FailureClass]] = {
    "unauthenticated": FailureClass.AUTH_ERROR,
    "forbidden": FailureClass.PERMISSION_ERROR,
    "payload_invalid": FailureClass.SCHEMA_ERROR,
    "meta_unregistered": FailureClass.SCHEMA_ERROR,
    "data_unusable": FailureClass.DATA_ERROR,
    "not_found": FailureClass.RESOURCE_MISSING,
    "gone": FailureClass.RESOURCE_MISSING,
    "version_conflict": FailureClass.CONCURRENCY_CONFLICT,
    "identity_in_use": FailureClass.CONCURRENCY_CONFLICT,
    "foreign_object": FailureClass.CONCURRENCY_CONFLICT,
    "locked": FailureClass.CONCURRENCY_CONFLICT,
    "rate_limited": FailureClass.DEPENDENCY_ERROR,
    "unavailable": FailureClass.DEPENDENCY_ERROR,
    "connection_refused": FailureClass.DEPENDENCY_ERROR,
    "no_connection": FailureClass.DEPENDENCY_ERROR,
    "deadline_passed": FailureClass.DEPENDENCY_ERROR,
    "attempts_exhausted": FailureClass.DEPENDENCY_ERROR,
    "drifted": FailureClass.STATE_DRIFT,
    "revoked": FailureClass.PERMISSION_ERROR,
    "frozen": FailureClass.PERMISSION_ERROR,
    "grant_refused": FailureClass.PERMISSION_ERROR,
    "effects_duplicated": FailureClass.DATA_ERROR,
}

BY_ERROR_CLASS: Final[dict[ErrorClass, FailureClass]] = {
    ErrorClass.TRANSIENT: FailureClass.DEPENDENCY_ERROR,
    ErrorClass.PERMANENT: FailureClass.DATA_ERROR,
    ErrorClass.BUSINESS: FailureClass.BUSINESS_RULE_ERROR,
    ErrorClass.UNKNOWN: FailureClass.TIMEOUT_UNKNOWN,
}


def failure_class(error_class: ErrorClass | None, error_code: str | None) -> FailureClass:
    """The class of a failure: by its code where the code says more, else by its error class."""
    if error_code is not None and error_code in BY_CODE:
        return BY_CODE[error_code]
    return BY_ERROR_CLASS[error_class] if error_class is not None else FailureClass.TIMEOUT_UNKNOWN
