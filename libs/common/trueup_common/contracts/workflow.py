"""The workflow document: what a case does, as data. Identified by (name, version, sha256), immutable once registered.

Effect class, compensation, verification, retry and consistency window come from the command declarations; a document
may only tighten them. `${ ... }` in a value is CEL over `input`, `steps` and `case` (see `trueup_common.documents`).
"""

from collections.abc import Callable
from datetime import timedelta
from enum import StrEnum
from functools import cached_property
from operator import attrgetter
from typing import Annotated, Any, Final, Self

from pydantic import ConfigDict, Field, model_validator

from trueup_common.contracts.canonical import digest
from trueup_common.contracts.ids import COMMAND_TYPE_PATTERN
from trueup_common.contracts.shape import Contract, ForwardContract, Instant, rfc3339

STEPS_MAX: Final = 100
STEP_ID_PATTERN: Final = r"^[a-z][a-z0-9_]{0,40}$"
NAME_PATTERN: Final = r"^[a-z][a-z0-9-]{0,62}$"

StepId = Annotated[str, Field(pattern=STEP_ID_PATTERN)]
Duration = Annotated[timedelta, Field(gt=timedelta(0), le=timedelta(days=366))]
"""ISO 8601, for example P2D or PT30M."""
Owner = Annotated[str, Field(min_length=1, max_length=200)]
Expression = Annotated[str, Field(min_length=1, max_length=2000)]
"""CEL."""


class StepKind(StrEnum):
    """What a step does."""

    COMMAND = "command"
    WAIT = "wait"
    APPROVAL = "approval"
    CHECK = "check"


class StepOutcome(StrEnum):
    """How a step may end other than well; what a document may answer with `on:`."""

    FAILED = "failed"
    CONFLICT = "conflict"
    EXHAUSTED = "exhausted"
    REJECTED = "rejected"
    TIMEOUT = "timeout"


class Reaction(StrEnum):
    """What follows such an end."""

    COMPENSATE = "compensate"
    CANCEL = "cancel"
    TAKEOVER = "takeover"
    SAFE_STOP = "safe_stop"
    CONTINUE = "continue"


class GoTo(Contract):
    """Go on with another step: forward, or back to steps that cause no effect."""

    goto: StepId


class Concurrency(StrEnum):
    """What happens to a second case about the same object."""

    REFUSE = "refuse"
    QUEUE = "queue"


class ObjectOf(Contract):
    """The business object of a case: its semantic lock and its state vector. `id` may use `${input…}`."""

    type: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,40}$")]
    id: Annotated[str, Field(min_length=1, max_length=300)]
    concurrency: Concurrency = Concurrency.REFUSE
    queue_timeout: Duration = timedelta(days=1)


class ApprovalOf(Contract):
    """A person's approval. `binds` are the values that are approved: another value needs another approval."""

    scope: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*(:[a-z0-9*_-]+)*$")]
    binds: tuple[Any, ...] = Field(min_length=1, max_length=20)
    timeout: Duration
    owner: Owner
    backup: Owner | None = None
    shows: dict[str, Any] = Field(default_factory=dict)
    """What the person is shown; values may use `${…}`."""


class WaitFor(Contract):
    """An external event, raced against a durable timer."""

    event: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_.-]{0,80}$")]
    match: Expression | None = None
    """CEL over `event` (its data), `input` and `steps`; an event that does not match stays held."""
    data: dict[str, Any] = Field(default_factory=dict)
    """JSON Schema of the event's data."""
    timeout: Duration
    owner: Owner
    backup: Owner | None = None


class Assertion(Contract):
    """One assertion of a check: CEL that must be true, and what to say where it is not."""

    that: Expression
    says: Annotated[str, Field(min_length=1, max_length=300)] | None = None


class RetryLimit(Contract):
    """A tighter retry budget than the declaration's."""

    attempts_max: int = Field(ge=1, le=100)


class Step(Contract):
    """One step; exactly one of `command`, `wait`, `approval` and `check` says what it does.

    `needs` are the steps that must have ended well or been skipped before; left out, it is the step before.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    id: StepId
    title: Annotated[str, Field(max_length=200)] | None = None
    needs: tuple[StepId, ...] | None = None
    when: Expression | None = None
    on: dict[StepOutcome, Reaction | GoTo] = Field(default_factory=dict)
    command: Annotated[str, Field(pattern=COMMAND_TYPE_PATTERN)] | None = None
    payload: dict[str, Any] | None = Field(default=None, alias="with")
    resource: Annotated[str, Field(min_length=1, max_length=300)] | None = None
    """The command's target resource; left out, it is `<object type>/<object id>`."""
    expected_version: str | None = None
    key: Annotated[str, Field(min_length=1, max_length=300)] | None = None
    """The business key of the effect; left out, it is `<definition>:<object id>:<step>`."""
    timeout: Duration | None = None
    """How long the step's effect may take in all, retries included; left out, what the declaration's retries need."""
    retry: RetryLimit | None = None
    wait: WaitFor | None = None
    approval: ApprovalOf | None = None
    check: tuple[Expression | Assertion, ...] | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        said = [kind for kind in StepKind if getattr(self, kind.value) is not None]
        if len(said) != 1:
            raise ValueError(f"step {self.id}: exactly one of command, wait, approval and check, not {len(said)}")
        if said[0] is StepKind.COMMAND and self.payload is None:
            raise ValueError(f"step {self.id}: a command needs its payload (with)")
        if said[0] is not StepKind.COMMAND:
            used = [name for name in ("payload", "resource", "expected_version", "key", "retry") if getattr(self, name)]
            if used:
                raise ValueError(f"step {self.id}: only a command has {', '.join(used)}")
        if self.check is not None and not self.check:
            raise ValueError(f"step {self.id}: a check without assertions proves nothing")
        return self

    @property
    def kind(self) -> StepKind:
        """What the step does."""
        return next(kind for kind in StepKind if getattr(self, kind.value) is not None)


class WorkflowDocument(Contract):
    """One version of a workflow."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    version: int = Field(ge=1, le=1_000_000, strict=True)
    title: Annotated[str, Field(max_length=200)] | None = None
    description: Annotated[str, Field(max_length=5000)] | None = None
    object: ObjectOf
    locks: tuple[Annotated[str, Field(min_length=1, max_length=300)], ...] = ()
    """Further semantic locks, filled from `${input…}`; taken at once, in sorted order."""
    lifetime: Duration
    input: dict[str, Any] = Field(default_factory=lambda: {"type": "object"})
    """JSON Schema of the input."""
    pivots_reason: Annotated[str, Field(min_length=10, max_length=500)] | None = None
    """Why more than one pivot is right here; without it two pivots are refused."""
    steps: tuple[Step, ...] = Field(min_length=1, max_length=STEPS_MAX)

    @cached_property
    def sha256(self) -> str:
        """The document's identity: the digest of its canonical form, whatever its spelling in YAML."""
        return digest(self.dumped())

    def dumped(self) -> dict[str, Any]:
        """The canonical form."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    @cached_property
    def by_id(self) -> dict[str, Step]:
        """Steps by id."""
        return {step.id: step for step in self.steps}

    @cached_property
    def needs(self) -> dict[str, tuple[str, ...]]:
        """What each step needs, with the default (the step before) filled in."""
        found: dict[str, tuple[str, ...]] = {}
        before: tuple[str, ...] = ()
        for step in self.steps:
            found[step.id] = before if step.needs is None else step.needs
            before = (step.id,)
        return found

    @cached_property
    def before(self) -> dict[str, frozenset[str]]:
        """Every step that must have ended before each step begins; a step in a cycle is before itself."""
        return {step.id: self._reached(step.id) for step in self.steps}

    def _reached(self, step_id: str) -> frozenset[str]:
        found: set[str] = set()
        ahead = list(self.needs[step_id])
        while ahead:
            need = ahead.pop()
            if need in self.by_id and need not in found:
                found.add(need)
                ahead.extend(self.needs[need])
        return frozenset(found)

    @cached_property
    def command_types(self) -> tuple[str, ...]:
        """The command types of the steps, sorted."""
        return tuple(sorted({step.command for step in self.steps if step.command is not None}))


class Direction(StrEnum):
    """Which way a case moves."""

    FORWARD = "forward"
    BACKWARD = "backward"
    PERSON = "person"
    STOP = "stop"


class StepPhase(StrEnum):
    """Where one step of a case stands. What a command's effect came to stands in its journal row."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    WAITING = "WAITING"
    DONE = "DONE"
    SKIPPED = "SKIPPED"
    FAILED = "FAILED"
    WITHDRAWN = "WITHDRAWN"


STEP_OVER: Final = frozenset({StepPhase.DONE, StepPhase.SKIPPED, StepPhase.FAILED, StepPhase.WITHDRAWN})
"""Phases in which a step waits for nothing more."""


class StepState(ForwardContract):
    """One step of a running case. Times are business time.

    `output` is what later steps may read of a wait (`data`), an approval (`reviewer`, `approved_at`, …) or a check; of
    a command it is read from its journal row. `attached` is True where the effect belongs to another case's operation.
    """

    id: str
    kind: StepKind
    phase: StepPhase = StepPhase.PENDING
    generation: int = 1
    outcome: StepOutcome | None = None
    command_type: str | None = None
    command_id: str | None = None
    attached: bool = False
    held: bool = False
    """True where its bad end is in a person's hands: it turns the case no more."""
    approval_id: str | None = None
    content_sha256: str | None = None
    output: dict[str, Any] | None = None
    reason: str | None = None
    started_at: Instant | None = None
    deadline_at: Instant | None = None
    wake_at: Instant | None = None
    ended_at: Instant | None = None

    def written(self) -> dict[str, Any]:
        """The state as a case keeps it: JSON without the empty fields."""
        if self.output is not None:
            return self.model_dump(mode="json", exclude_none=True)
        found = {name: value for name, value in self.__dict__.items() if value is not None}
        for name, form in _STATE_FORMS:
            if name in found:
                found[name] = form(found[name])
        return found


_STATE_FORMS: Final[tuple[tuple[str, Callable[[Any], str]], ...]] = (
    *((name, attrgetter("value")) for name in ("kind", "phase", "outcome")),
    *((name, rfc3339) for name in ("started_at", "deadline_at", "wake_at", "ended_at")),
)
"""Fields of a step's state that JSON has in another form."""
