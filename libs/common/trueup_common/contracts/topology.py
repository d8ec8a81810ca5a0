"""The topology of the bus: streams, consumers, buckets and who may do what, as data.

The bootstrap identity creates streams and consumers from it, the broker's permissions are generated from it, and a
consumer that vanished is recreated from it. Subjects end in the tenant, so that no message is without one.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Final

COMMANDS: Final = "COMMANDS"
GRANTS: Final = "GRANTS"
TASKS: Final = "TASKS"
EVENTS: Final = "EVENTS"

CATALOG_BUCKET: Final = "catalog"
GOVERNANCE_BUCKET: Final = "governance"
ARTIFACTS_BUCKET: Final = "artifacts"
"""The object store: the gateway writes and reads it, adapters only read it."""
ARTIFACTS_STREAM: Final = f"OBJ_{ARTIFACTS_BUCKET}"
ARTIFACTS_BYTES_MAX: Final = 2 * 1024**3

SERVICES: Final = ("gateway", "orchestrator", "adapters", "reconciler", "repair-planner")

CLOCK_SUBJECT: Final = "trueup.ctl.clock"
CRASH_SUBJECT: Final = "trueup.ctl.crash"
GOVERNANCE_BEAT_SUBJECT: Final = "trueup.beat.governance"


@dataclass(frozen=True, slots=True)
class Stream:
    """One stream. `work_queue` keeps a message until it is acked; otherwise `max_age_seconds` limits it."""

    name: str
    subjects: tuple[str, ...]
    work_queue: bool
    max_age_seconds: int = 0
    max_bytes: int = 256 * 1024**2
    duplicate_window_seconds: int = 120


@dataclass(frozen=True, slots=True)
class Consumer:
    """One durable pull consumer, shared by the replicas of a service."""

    durable: str
    stream: str
    service: str
    filters: tuple[str, ...]
    ack_wait_seconds: int = 6
    max_ack_pending: int = 4000


STREAMS: Final = (
    Stream(COMMANDS, ("trueup.cmd.*",), work_queue=True),
    Stream(GRANTS, ("trueup.grant.request.*",), work_queue=True),
    Stream(TASKS, ("trueup.task.*.*.*",), work_queue=True),
    Stream(EVENTS, ("trueup.evt.>",), work_queue=False, max_age_seconds=7 * 86400, max_bytes=1024**3),
)

CONSUMERS: Final = (
    Consumer("orchestrator-commands", COMMANDS, "orchestrator", ("trueup.cmd.*",)),
    Consumer(
        "orchestrator-events",
        EVENTS,
        "orchestrator",
        (
            "trueup.evt.adapter.*.receipt.*",
            "trueup.evt.reconciler.settlement.*",
            "trueup.evt.reconciler.verified.*",
            "trueup.evt.gateway.grant-refused.*",
            "trueup.evt.gateway.approval.*",
            "trueup.evt.gateway.operator.*",
        ),
    ),
    # By itself: a shift change sends thousands at once, and no receipt of others waits behind them.
    Consumer("orchestrator-signals", EVENTS, "orchestrator", ("trueup.evt.gateway.signal.*",)),
    Consumer("gateway-grants", GRANTS, "gateway", ("trueup.grant.request.*",)),
    Consumer(
        "gateway-views",
        EVENTS,
        "gateway",
        (
            "trueup.evt.orchestrator.case.*",
            "trueup.evt.orchestrator.signal.*",
            "trueup.evt.reconciler.element.*",
            "trueup.evt.planner.exception.*",
            "trueup.evt.planner.repair.*",
            "trueup.evt.planner.incident.*",
            "trueup.evt.*.operator-ended.*",
        ),
    ),
    Consumer("gateway-approvals", EVENTS, "gateway", ("trueup.evt.orchestrator.approval.*",)),
    Consumer(
        "reconciler-events",
        EVENTS,
        "reconciler",
        (
            "trueup.evt.orchestrator.settle.*",
            "trueup.evt.orchestrator.established.*",
            "trueup.evt.adapter.*.found.*",
            "trueup.evt.adapter.*.observed.*",
            "trueup.evt.planner.repair.*",
            "trueup.evt.gateway.operator.*",
        ),
    ),
    Consumer(
        "repair-planner-events",
        EVENTS,
        "repair-planner",
        (
            "trueup.evt.orchestrator.exception.*",
            "trueup.evt.reconciler.exception.*",
            "trueup.evt.gateway.exception.*",
            "trueup.evt.*.quarantined.*",
            "trueup.evt.gateway.operator.*",
            "trueup.evt.orchestrator.operator-ended.*",
        ),
    ),
)


def task_consumer(system: str) -> Consumer:
    """The consumer of one system's tasks."""
    return Consumer(f"adapters-{system}", TASKS, "adapters", (f"trueup.task.{system}.*.*",))


def command_subject(tenant: str) -> str:
    """Where accepted commands go."""
    return f"trueup.cmd.{tenant}"


def grant_subject(tenant: str) -> str:
    """Where proposed tasks go."""
    return f"trueup.grant.request.{tenant}"


def task_subject(system: str, verb: str, tenant: str) -> str:
    """Where tasks go; `verb` ∈ execute, find, probe."""
    return f"trueup.task.{system}.{verb}.{tenant}"


def event_subject(service: str, kind: str, tenant: str) -> str:
    """Where events go; adapters use `adapter.<system>` as the service."""
    return f"trueup.evt.{service}.{kind}.{tenant}"


def beat_subject(system: str) -> str:
    """Where adapter workers announce slots and long attempts (core NATS)."""
    return f"trueup.beat.adapter.{system}"


def answer_subject(instance: str) -> str:
    """Where one gateway replica hears of finished commands (core NATS)."""
    return f"trueup.answer.{instance}"


_PUBLISHES: Final[dict[str, tuple[str, ...]]] = {
    "gateway": (
        "trueup.cmd.*",
        "trueup.task.*.execute.*",
        "trueup.evt.gateway.>",
        GOVERNANCE_BEAT_SUBJECT,
        f"$KV.{GOVERNANCE_BUCKET}.>",
        f"$O.{ARTIFACTS_BUCKET}.>",
    ),
    "orchestrator": (
        "trueup.task.*.execute.*",
        "trueup.grant.request.*",
        "trueup.evt.orchestrator.>",
        "trueup.answer.*",
    ),
    "adapters": ("trueup.evt.adapter.>", "trueup.evt.adapters.>", "trueup.beat.adapter.*"),
    "reconciler": ("trueup.task.*.probe.*", "trueup.task.*.find.*", "trueup.evt.reconciler.>"),
    "repair-planner": ("trueup.evt.planner.>", "trueup.evt.repair-planner.>"),
}

_SUBSCRIBES: Final[dict[str, tuple[str, ...]]] = {
    "gateway": ("trueup.answer.*", "trueup.beat.adapter.*"),
    "orchestrator": ("trueup.beat.adapter.*",),
    "adapters": (),
    "reconciler": (),
    "repair-planner": (),
}


@dataclass(frozen=True, slots=True)
class Permissions:
    """Subjects that one broker user may publish and subscribe; everything else is denied."""

    user: str
    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)


def inbox_prefix(user: str) -> str:
    """Private inbox prefix of a broker user."""
    return f"_INBOX_{user.replace('-', '_')}"


def _watch_permissions(bucket: str) -> tuple[str, ...]:
    stream = f"KV_{bucket}"
    return (
        f"$JS.API.STREAM.INFO.{stream}",
        f"$JS.API.CONSUMER.CREATE.{stream}.>",
        f"$JS.API.CONSUMER.CREATE.{stream}",
        f"$JS.API.CONSUMER.DELETE.{stream}.>",
        f"$JS.API.CONSUMER.INFO.{stream}.*",
        f"$JS.API.DIRECT.GET.{stream}.>",
        f"$JS.API.STREAM.MSG.GET.{stream}",
        f"$JS.FC.{stream}.>",
        f"$JS.ACK.{stream}.>",
    )


_READS_ARTIFACTS: Final = ("gateway", "adapters")
"""Reading is by direct gets alone, so that nobody needs a consumer for it."""


def artifact_subjects() -> tuple[str, str]:
    """Subjects of the object store: the pieces of its objects, and what each object is."""
    return f"$O.{ARTIFACTS_BUCKET}.C.>", f"$O.{ARTIFACTS_BUCKET}.M.>"


def permissions(service: str, systems: tuple[str, ...] = ()) -> Permissions:
    """What the broker user of `service` may do. `systems` are the adapters whose tasks it consumes."""
    own = [c for c in CONSUMERS if c.service == service]
    if service == "adapters":
        own += [task_consumer(system) for system in systems]
    publish = list(_PUBLISHES[service])
    for consumer in own:
        publish += [
            f"$JS.API.CONSUMER.MSG.NEXT.{consumer.stream}.{consumer.durable}",
            f"$JS.API.CONSUMER.INFO.{consumer.stream}.{consumer.durable}",
            f"$JS.ACK.{consumer.stream}.{consumer.durable}.>",
        ]
    publish += ["$JS.API.INFO"]
    publish += [f"$JS.API.STREAM.INFO.{stream.name}" for stream in STREAMS]
    for bucket in (CATALOG_BUCKET, GOVERNANCE_BUCKET):
        publish += _watch_permissions(bucket)
    if service in _READS_ARTIFACTS:
        publish += [f"$JS.API.DIRECT.GET.{ARTIFACTS_STREAM}", f"$JS.API.DIRECT.GET.{ARTIFACTS_STREAM}.>"]
    publish += ["_INBOX_admin.>"]  # answers to control requests (clock)
    subscribe = [
        f"{inbox_prefix(service)}.>",
        CLOCK_SUBJECT,
        CRASH_SUBJECT,
        GOVERNANCE_BEAT_SUBJECT,
        *_SUBSCRIBES[service],
    ]
    return Permissions(user=service, publish=tuple(publish), subscribe=tuple(subscribe))


def adapter_user(system: str) -> str:
    """The broker user of an adapters process that serves one system alone."""
    return f"adapters-{system}"


def adapter_permissions(system: str) -> Permissions:
    """What an adapters process of one system may do: another system's tasks are out of its reach."""
    user, whole = adapter_user(system), permissions("adapters", (system,))
    narrowed = {
        "trueup.evt.adapter.>": f"trueup.evt.adapter.{system}.>",
        beat_subject("*"): beat_subject(system),
        f"{inbox_prefix('adapters')}.>": f"{inbox_prefix(user)}.>",
    }
    return replace(
        whole,
        user=user,
        publish=tuple(narrowed.get(subject, subject) for subject in whole.publish),
        subscribe=tuple(narrowed.get(subject, subject) for subject in whole.subscribe),
    )


DUE: Final[tuple[tuple[str, str, str, str], ...]] = (
    ("orchestrator", "operation", "wake_at", "wake_at IS NOT NULL"),
    ("orchestrator", "instance", "watched_until", "watched_until IS NOT NULL"),
    ("orchestrator", "instance", "wake_at", "wake_at IS NOT NULL"),
    ("orchestrator", "obligation", "deadline_at", "status = 'open'"),
    ("reconciler", "settlement", "next_at", "next_at IS NOT NULL"),
    ("reconciler", "element", "next_visit_at", "next_visit_at IS NOT NULL"),
    ("repair_planner", "exception", "deadline_at", "status = 'open'"),
    ("repair_planner", "repair", "due_at", "due_at IS NOT NULL"),
    ("repair_planner", "repair", "verify_until", "status = 'VERIFYING'"),
    ("repair_planner", "incident", "due_at", "due_at IS NOT NULL"),
)
"""(schema, table, column, predicate) of business-time due columns: what `trueup.next_due()` looks at."""
