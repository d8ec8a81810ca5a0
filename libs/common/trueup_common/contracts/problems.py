"""Problem types of the HTTP contract: one table, from which the pages under /problems/ and the OpenAPI answers come."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class ProblemType:
    """One kind of refusal: its slug, HTTP status, title, and what the caller can do next."""

    slug: str
    status: int
    title: str
    advice: str


_ALL: Final = (
    ProblemType(
        "body-malformed",
        400,
        "The body is not acceptable JSON",
        "Send UTF-8 JSON without duplicate keys, NaN or infinity, not nested deeper than 32.",
    ),
    ProblemType(
        "parameter-invalid", 400, "A parameter is not acceptable", "Correct the parameter that `errors` names."
    ),
    ProblemType(
        "tenant-invalid",
        400,
        "The tenant id is not acceptable",
        "Use the exact spelling: lower-case letters, digits and hyphens.",
    ),
    ProblemType(
        "idempotency-key-missing",
        400,
        "The Idempotency-Key header is missing",
        "Send a business key that names this intent; repeat it on every retry.",
    ),
    ProblemType(
        "idempotency-key-invalid",
        400,
        "The Idempotency-Key is not acceptable",
        "Use 1 to 255 printable ASCII characters.",
    ),
    ProblemType("unauthorized", 401, "The token is not acceptable", "Get a fresh token; `check` names what failed."),
    ProblemType("forbidden", 403, "Not permitted", "`check` names what failed; ask for a decision that covers this."),
    ProblemType("not-found", 404, "No such object", "Check the id; objects of other tenants do not exist for you."),
    ProblemType("method-not-allowed", 405, "Method not allowed", "See the OpenAPI document."),
    ProblemType(
        "conflict", 409, "Not possible in this state", "Read the object again; `detail` says what is possible."
    ),
    ProblemType(
        "action-not-available",
        409,
        "No such action here or now",
        "`allowed_actions` lists what is possible.",
    ),
    ProblemType(
        "repair-in-flight",
        409,
        "Somebody is at work on this already",
        "Follow the operator command that `operator_command_id` names; one repair runs at a time.",
    ),
    ProblemType(
        "idempotency-in-flight",
        409,
        "The first request with this key is still being accepted",
        "Repeat after the time in Retry-After.",
    ),
    ProblemType(
        "identity-in-use",
        409,
        "Another command already owns this business identity",
        "Follow the command that `detail` names.",
    ),
    ProblemType(
        "request-timeout", 408, "The request came too slowly", "Send the whole request at once, over a new connection."
    ),
    ProblemType("too-large", 413, "The body is too large", "Send less, or refer to an artifact."),
    ProblemType("media-type-unsupported", 415, "The media type is not supported", "Send application/json."),
    ProblemType(
        "idempotency-key-reused",
        422,
        "The key was used for another request",
        "Use a new key for a new intent, or repeat the first request exactly.",
    ),
    ProblemType(
        "payload-invalid", 422, "The request does not fit its schema", "`errors` lists every place with a JSON pointer."
    ),
    ProblemType(
        "definition-invalid",
        422,
        "The workflow document breaks a rule",
        "`errors` names the rule, the line and the place of every fault.",
    ),
    ProblemType("unknown-command-type", 422, "No such command type", "See GET /v1/catalog/commands."),
    ProblemType(
        "unknown-system",
        422,
        "No connection to this system for this tenant",
        "Ask an engineer to configure the connection.",
    ),
    ProblemType("rate-limited", 429, "Too many requests", "Repeat after the time in Retry-After."),
    ProblemType(
        "internal",
        500,
        "An error inside the gateway",
        "Repeat with the same Idempotency-Key; report the instance id if it persists.",
    ),
    ProblemType("unavailable", 503, "Not ready", "Repeat with the same Idempotency-Key after the time in Retry-After."),
)

PROBLEMS: Final[dict[str, ProblemType]] = {problem.slug: problem for problem in _ALL}

_OF_CHECK: Final[dict[tuple[str, str], str]] = {
    ("unauthorized", "audience"): "Send the kind of token that `detail` names.",
    ("forbidden", "approval"): (
        "Somebody else decides: a person with the role approver and the scope that the approval names, who did not ask "
        "for it."
    ),
    ("forbidden", "role"): "Ask whoever issues the tokens for one of the roles that `detail` names.",
    ("forbidden", "tenant"): "Use a token of the tenant that this belongs to.",
    ("forbidden", "uses"): "Ask for a new capability of the decision, with the uses that are needed.",
    ("forbidden", "frozen"): "Wait until the freeze that `detail` names is lifted; GET /v1/controls/freezes says why.",
    ("forbidden", "resource_version"): "Read the object again, and ask for a decision about its present version.",
}
"""What the caller can do next where the check that failed says more than the problem type."""

AWAITS_APPROVAL: Final = (
    "A person decides on the approval (`approval_id`, see GET /v1/approvals); once it is given, ask for the capability "
    "of this same decision: POST /v1/capabilities with its `decision_id`."
)
NO_CREDENTIALS: Final = (
    "Send `Authorization: Bearer <token>`: an access token, or a capability where the call needs one."
)


def advice_of(slug: str, check: str | None = None) -> str:
    """What the caller can do next."""
    return _OF_CHECK.get((slug, check or ""), PROBLEMS[slug].advice)


CHECKS_401: Final = ("signature", "issuer", "audience", "time", "holder")
CHECKS_403: Final = (
    "scope",
    "tenant",
    "command_type",
    "resource",
    "payload_hash",
    "resource_version",
    "uses",
    "revoked",
    "decision",
    "policy",
    "approval",
    "frozen",
    "role",
)
