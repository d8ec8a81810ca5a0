"""What is kept of numbers: cohorts as they were counted last, and counters by minute and hour. All can be rebuilt."""

from trueup_common.contracts.shape import ForwardContract, Instant


class CohortRow(ForwardContract):
    """The objects of one tenant that began in one minute, as they were counted last.

    `due_at` is when time alone decides about one of them; empty where only a change can.
    """

    tenant: str
    subject: str
    began_at: Instant
    parts: dict[str, dict[str, float]]
    due_at: Instant | None = None


class CounterRow(ForwardContract):
    """Everything counted in one minute or hour (`grain`). Tenant `*` holds the sums over all tenants."""

    tenant: str
    grain: str
    at: Instant
    counts: dict[str, float]


class SightingRow(ForwardContract):
    """Something that is nothing by itself and an anomaly in numbers. `name` tells those of one instant apart."""

    tenant: str
    kind: str
    actor: str
    at: Instant
    name: str = ""
    count: int
    about: str | None = None
    """The case that it was about last."""


ALL_TENANTS = "*"
"""No tenant can be called so."""
MINUTE_GRAIN = "minute"
HOUR_GRAIN = "hour"
