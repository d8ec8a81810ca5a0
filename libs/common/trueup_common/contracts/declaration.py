"""The declaration of a command type: one piece of pure data that every service reads (requirement X8).

It stands beside the adapter's code, is loaded into the catalog by hash and is immutable there; a running operation
keeps the one it started with. Adding a command type touches one file.
"""

from collections.abc import Mapping as MappingOf
from enum import StrEnum
from functools import cached_property
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from trueup_common.contracts.canonical import digest
from trueup_common.contracts.compare import NORMALISERS
from trueup_common.contracts.ids import COMMAND_TYPE_PATTERN, SYSTEM_PATTERN
from trueup_common.contracts.objects import Template, encloses, label_of
from trueup_common.contracts.pointer import Absent, ValueFrom
from trueup_common.contracts.shape import Contract
from trueup_common.contracts.states import EffectClass, Findability, RiskLevel


class RetryPolicy(Contract):
    """Exponential backoff with full jitter, bounded by attempts and by the deadline."""

    attempts_max: int = Field(default=6, ge=1, le=100)
    initial_seconds: float = Field(default=1.0, gt=0)
    factor: float = Field(default=2.0, ge=1)
    ceiling_seconds: float = Field(default=60.0, gt=0)


class Probe(Contract):
    """How one state element is observed: a kind that the adapter knows and the parameters it needs."""

    kind: str
    params: dict[str, ValueFrom] = Field(default_factory=dict)


class Mapping(Contract):
    """Another command of the same system and where its payload comes from (compensation, repair)."""

    command_type: str = Field(pattern=COMMAND_TYPE_PATTERN)
    payload: dict[str, ValueFrom]
    only_if: ValueFrom | None = None
    verification: str = ""


class Drift(StrEnum):
    """How an element can differ from what is desired of it."""

    MISSING = "missing"
    DIFFERENT = "different"


class Repair(Mapping):
    """The command that brings one element back, and nothing else (requirement R3).

    `mends` says which drift it can mend at all; any other is a person's. `binds` names payload members that come from
    the observation of the drift (`version`, `etag` or `value`): who changed the object since then is not overwritten.
    A repair establishes the element that it mends, and declares its own repair, so that it can be repaired again.
    """

    mends: tuple[Drift, ...] = (Drift.MISSING, Drift.DIFFERENT)
    binds: dict[str, Literal["version", "etag", "value"]] = Field(default_factory=dict)


class Establishes(Contract):
    """One element of the desired state that a success of this command brings about.

    `resource` names the business object of the element (for example the post); the newest operation on it owns the
    desired value. `window_seconds` is the consistency window: 0 lets the read-back of the receipt verify at once.
    `normaliser` is a name from `contracts.compare`.
    """

    element: str = Field(pattern=r"^[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*$")
    resource: ValueFrom
    value: ValueFrom
    window_seconds: float = Field(default=0.0, ge=0)
    normaliser: str = "exact"
    probe: Probe
    repair: Repair | None = None
    """How this element alone is brought back; the type's own `repair` where it has none."""
    downstream_of: tuple[str, ...] = ()
    """Elements of the same business object, of whatever system, that this one shows (a cache shows the post): while one
    of them has drifted this one is not repaired, and after it was repaired this one is looked at again."""

    @model_validator(mode="after")
    def _comparable(self) -> Self:
        if self.normaliser not in NORMALISERS:
            raise ValueError(f"{self.element}: no such normaliser {self.normaliser!r}")
        if self.element in self.downstream_of:
            raise ValueError(f"{self.element}: an element is not downstream of itself")
        return self


class CommandDeclaration(Contract):
    """Everything that the system knows of one command type. All durations are in seconds."""

    type: str = Field(pattern=COMMAND_TYPE_PATTERN)
    system: str = Field(pattern=SYSTEM_PATTERN)
    title: str
    description: str = ""
    permission: str
    effect_class: EffectClass
    payload_schema: dict[str, Any]
    receipt_schema: dict[str, Any] = Field(default_factory=dict)
    acts_on: str | None = Field(default=None, max_length=300)
    """The object that a command touches, named from its payload (`contracts.objects`): `post/{/payload/post_id}`; of
    what creates, the collection. None: the target's label is all that is known of it."""
    exclusive: bool = False
    """Reads the object, compares and writes, with nothing at the target that makes this one step: while an attempt of
    such a type may still act on an object, no other one on it begins. Not needed where the target compares itself."""
    identity: tuple[str, ...] = ()
    """Pointers into {target, payload} that make up the business identity; none = only the key counts. Where the type
    declares what it acts on, `/target/resource` is that object, whatever label the caller gave."""
    key_lifetime_seconds: int = Field(default=7 * 86400, ge=3600)
    result_lifetime_seconds: int = Field(default=30 * 86400, ge=3600)
    findability: Findability
    find_ladder: tuple[Findability, ...] = ()
    target_key_lifetime_seconds: int | None = None
    """Past this age of the effect the target's silence about a native key proves nothing."""
    timeout_seconds: float = Field(default=30.0, gt=0, le=3600)
    start_window_seconds: float = Field(default=30.0, gt=0, le=3600)
    late_window_seconds: float = Field(default=10.0, ge=0)
    """How long after the timeout the target may still act on a request it received."""
    progress_seconds: float = Field(default=60.0, gt=0)
    retry: RetryPolicy = RetryPolicy()
    expected_version: str = Field(default="optional", pattern="^(none|optional|required)$")
    success_condition: str
    read_back: bool = True
    establishes: tuple[Establishes, ...] = ()
    compensation: Mapping | None = None
    repair: Repair | None = None
    forward_recovery: str = Field(default="person", pattern="^(retry|repair|person)$")
    reconciliation: str = Field(default="find", pattern="^(find|probe|person)$")
    manual_policy: str | None = None
    risk: RiskLevel = RiskLevel.LOW
    blast_radius: int = Field(default=1, ge=0, le=100)
    """0-100: how much of the world one mistake of this type touches; a factor of the risk score."""

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        if not self.type.startswith(f"{self.system}."):
            raise ValueError(f"{self.type} does not belong to system {self.system}")
        if self.findability is Findability.NONE and not self.manual_policy:
            raise ValueError(f"{self.type} cannot be found again and so needs a manual policy")
        if self.key_lifetime_seconds < self.retry_horizon_seconds + self.late_window_seconds:
            raise ValueError(f"{self.type}: keys must outlive retries and late delivery")
        if self.effect_class is EffectClass.COMPENSABLE and self.compensation is None:
            raise ValueError(f"{self.type} is compensable and declares no compensation")
        for mapping in (self.compensation, *self.repairs()):
            if mapping is not None and not mapping.command_type.startswith(f"{self.system}."):
                raise ValueError(f"{self.type}: compensation and repair stay within the system")
        if self.acts_on is not None and "/target/resource" in self._pointers():
            raise ValueError(f"{self.type}: a label names no object; point into the payload or the receipt")
        if self.exclusive and self.acts_on is None:
            raise ValueError(f"{self.type}: only what names its object can have it alone")
        self.object_template  # noqa: B018 - raises where it does not fit the schema
        return self

    def _pointers(self) -> set[str | None]:
        """Where values come from, apart from the identity."""
        mappings = [item for item in (self.compensation, *self.repairs()) if item is not None]
        found = {item.only_if.pointer for item in mappings if item.only_if is not None}
        for mapping in mappings:
            found |= {source.pointer for source in mapping.payload.values()}
        for item in self.establishes:
            found |= {source.pointer for source in (item.resource, item.value, *item.probe.params.values())}
        return found

    def repair_of(self, item: Establishes) -> Repair | None:
        """What brings one element back; None where only a person can."""
        return item.repair or self.repair

    def repairs(self) -> tuple[Repair, ...]:
        """Every repair that the declaration names."""
        named = (self.repair, *(item.repair for item in self.establishes))
        return tuple(repair for repair in named if repair is not None)

    @property
    def retry_horizon_seconds(self) -> float:
        """An upper bound on how long retries of one operation can go on."""
        policy, total, delay = self.retry, 0.0, self.retry.initial_seconds
        for _ in range(policy.attempts_max):
            total += self.start_window_seconds + self.timeout_seconds + min(delay, policy.ceiling_seconds)
            delay = min(delay * policy.factor, policy.ceiling_seconds)
        return total

    @cached_property
    def sha256(self) -> str:
        """The declaration's identity. One from before there was a member keeps its own."""
        later = {"acts_on": self.acts_on is None, "exclusive": not self.exclusive}
        return digest(self.model_dump(mode="json", exclude={name for name, is_plain in later.items() if is_plain}))

    @cached_property
    def object_template(self) -> Template | None:
        """`acts_on`, read."""
        return None if self.acts_on is None else Template.read(self.acts_on, self.payload_schema)


def object_of(declaration: CommandDeclaration, payload: Any) -> str | None:
    """The object that a command with this payload touches; None where its type does not say. Raises Absent."""
    template = declaration.object_template
    return None if template is None else template.fill(payload)


def identified(declaration: CommandDeclaration, target: MappingOf[str, Any], payload: Any) -> dict[str, Any]:
    """What the pointers of an identity point into: two labels of one object are one target."""
    template = declaration.object_template
    if template is not None and "/target/resource" in declaration.identity:
        target = {**target, "resource": template.fill(payload)}
    return {"target": target, "payload": payload}


def is_about(declaration: CommandDeclaration, payload: Any, label: str) -> bool:
    """True where no label stands for another object than the command touches."""
    template = declaration.object_template
    if template is None:
        return True
    try:
        named = template.fill(payload)
    except Absent:
        return False
    return encloses(label, named) or not template.could_name(label)


def target_of(declaration: CommandDeclaration, payload: Any, label: str) -> str:
    """The label of an effect that nobody but us names: its object, or `label` where the type does not say."""
    try:
        named = object_of(declaration, payload)
    except Absent:
        return label  # the payload fits no schema, and nothing is sent by it
    return label if named is None else label_of(named)


class ConnectionNotice(Contract):
    """That a connection exists for (tenant, system), without any secret."""

    tenant: str
    system: str
