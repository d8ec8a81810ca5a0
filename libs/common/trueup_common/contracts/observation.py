"""Observations: an authoritative value with its provenance; a verdict is about a value, not about mere existence."""

from typing import Any

from trueup_common.contracts.shape import ForwardContract, Instant
from trueup_common.contracts.states import FindVerdict, ProbeVerdict


class Observation(ForwardContract):
    """What one read of one element said. UNKNOWN carries a reason and no value."""

    element: str
    verdict: ProbeVerdict
    value: Any = None
    observed_at: Instant
    source: str
    version: str | None = None
    etag: str | None = None
    proof_of_access: bool = False
    reason: str | None = None


class Finding(ForwardContract):
    """What looking for one operation's effect said.

    `candidates` counts effects that carry this operation's evidence: more than one is an exception of the highest
    severity. `evidence` names the rung of the ladder that answered.
    """

    verdict: FindVerdict
    proof_of_access: bool = False
    evidence: str | None = None
    candidates: int = 0
    result: dict[str, Any] | None = None
    external_resource_id: str | None = None
    external_version: str | None = None
    observations: tuple[Observation, ...] = ()
    reason: str | None = None
