"""The grant: authority for one attempt of one operation at one adapter; minted by governance, checked before use."""

from datetime import datetime
from typing import Any, Final

from pydantic import Field, ValidationError

from trueup_common.contracts.shape import Contract
from trueup_common.contracts.task import ExecuteTask

TYPE: Final = "grant+jwt"
ALGORITHM: Final = "HS256"
ISSUER: Final = "trueup-gateway"
SKEW_SECONDS: Final = 2


class GrantClaims(Contract):
    """Claims of a grant (compact JWS, HS256, one key per adapter system). Times are Unix seconds, real time."""

    iss: str
    aud: str
    sub: str
    tenant: str
    op: str
    fence: int
    command_type: str
    resource: str
    payload_sha256: str
    expected_version: str | None = None
    declaration_sha256: str
    decision: str
    mandate: str
    capability: str
    policy: str
    approval: str | None = None
    epoch: int = Field(ge=0)
    compensation: bool = False
    iat: int
    exp: int
    jti: str


def audience(system: str) -> str:
    """The audience of grants for one system's adapter."""
    return f"adapter:{system}"


def read_claims(value: Any) -> GrantClaims | str:
    """Parsed claims, or what is wrong with them."""
    try:
        return GrantClaims.model_validate(value)
    except ValidationError:
        return "claims"


def refusal(claims: GrantClaims, task: ExecuteTask, *, now: datetime, epoch_min: int) -> str | None:
    """None where the grant covers exactly this attempt now; else the name of the check that fails."""
    operation = task.operation
    checks = (
        ("issuer", claims.iss == ISSUER),
        ("audience", claims.aud == audience(operation.target.system)),
        ("tenant", claims.tenant == operation.tenant),
        ("operation", claims.op == operation.command_id),
        ("fence", claims.fence == task.fence),
        ("command_type", claims.command_type == operation.command_type),
        ("resource", claims.resource == operation.target.resource),
        ("payload_hash", claims.payload_sha256 == operation.payload_sha256),
        ("resource_version", claims.expected_version == operation.target.expected_version),
        ("declaration", claims.declaration_sha256 == operation.declaration_sha256),
        ("epoch", claims.epoch >= epoch_min),
        ("time", claims.iat - SKEW_SECONDS <= now.timestamp() < claims.exp),
    )
    return next((name for name, holds in checks if not holds), None)
