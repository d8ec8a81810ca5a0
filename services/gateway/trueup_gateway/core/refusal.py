"""A refusal has one meaning: a problem type of the contract, and the check that failed. It leaves no row."""

from collections.abc import Mapping, Sequence
from typing import Any

from trueup_common.contracts.problems import NO_CREDENTIALS, PROBLEMS, ProblemType, advice_of


class Refused(Exception):
    """The request is refused. `check` names what failed, `errors` say where, and nothing here shows a secret.

    `extra` are further members of the problem document (for example the command that owns an identity). `anonymous`
    says that no credentials were sent at all: then nothing is wrong with a token (RFC 6750).
    """

    def __init__(
        self,
        slug: str,
        detail: str,
        *,
        check: str | None = None,
        errors: Sequence[tuple[str, str]] = (),
        retry_after_seconds: int | None = None,
        extra: Mapping[str, Any] | None = None,
        anonymous: bool = False,
        advice: str | None = None,
    ) -> None:
        super().__init__(f"{slug}: {detail}")
        self.problem: ProblemType = PROBLEMS[slug]
        self.detail = detail
        self.check = check
        self.errors = tuple(errors)
        self.retry_after_seconds = retry_after_seconds
        self.extra = dict(extra or {})
        self.anonymous = anonymous
        self.advice = advice or (NO_CREDENTIALS if anonymous else advice_of(slug, check))
        """What the caller can do next."""


def forbidden(check: str, detail: str) -> Refused:
    """403 with the check that failed."""
    return Refused("forbidden", detail, check=check)


def unauthorized(check: str, detail: str) -> Refused:
    """401 with the check that failed."""
    return Refused("unauthorized", detail, check=check)


def invalid(errors: Sequence[tuple[str, str]]) -> Refused:
    """422 with a pointer for every place that does not fit."""
    return Refused("payload-invalid", "The request does not fit its schema.", errors=errors)


def parameter(name: str, detail: str) -> Refused:
    """400 for a query or path parameter."""
    return Refused("parameter-invalid", f"The parameter {name} is not acceptable.", errors=[(f"/{name}", detail)])
