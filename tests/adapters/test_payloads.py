"""Payloads kept as artifacts: whole before anything is sent, believed by hash, and honest where they cannot be read."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import pytest
from tests.adapters.builders import DECLARATION, Process, execute, find, operation
from tests.adapters.memory import Ledger
from tests.adapters.test_execution import FakeTarget, NoCrash
from tests.objects import MemoryObjects
from tests.patience import PATIENCE_SECONDS

from trueup_adapters.authority import GrantAuthority
from trueup_adapters.core.job import SendJob
from trueup_adapters.execution import Execution, FinishedQueue, Line
from trueup_adapters.payloads import KeptPayloads, PayloadAway, PayloadInvalid, PayloadMissing
from trueup_common.contracts.adapter import Connection, Outcome
from trueup_common.contracts.canonical import digest
from trueup_common.contracts.grant import GrantClaims
from trueup_common.contracts.observation import Finding
from trueup_common.contracts.states import ErrorClass, FindVerdict, ReceiptStatus
from trueup_common.contracts.task import Operation, PayloadRef
from trueup_common.runtime.clock import monotonic, real_now

WHOLE = {"slug": "s", "content": "long " * 1000, "number": 1.5}
RAW = b'{ "number": 1.50, "slug": "s", "content": "' + b"long " * 1000 + b'"}'


def kept(objects: MemoryObjects, raw: bytes = RAW, tenant: str = "acme", artifact_id: str = "art_1") -> Operation:
    """An operation whose payload is kept, and the object."""
    stored = objects.keep(tenant, artifact_id, raw)
    ref = PayloadRef(artifact_id=artifact_id, sha256=stored.sha256, size=stored.size)
    reduced: Operation = operation(payload={"slug": "s"}).evolve(payload_sha256=digest(WHOLE), payload_ref=ref)
    return reduced


async def test_the_whole_payload_is_fetched_once_and_checked_by_both_hashes() -> None:
    """The artifact's bytes and the accepted value; a payload that came with the task is left alone.

    Requirements: X1, L16
    """
    objects = MemoryObjects()
    payloads = KeptPayloads(objects)
    about = kept(objects)
    for _ in range(3):
        whole = await payloads.whole(about)
        assert whole.payload == WHOLE
        assert whole.evolve(payload=about.payload) == about
    assert objects.reads == 1
    inline = operation()
    assert await payloads.whole(inline) is inline


@pytest.mark.parametrize(
    ("harm", "raised"),
    [
        ("away", PayloadAway),
        ("gone", PayloadMissing),
        ("changed", PayloadInvalid),
        ("another value", PayloadInvalid),
        ("no json", PayloadInvalid),
        ("another tenant", PayloadMissing),
    ],
)
async def test_what_is_not_what_was_accepted_is_never_handed_on(harm: str, raised: type[Exception]) -> None:
    """Requirements: L16, T1, X4"""
    objects = MemoryObjects()
    about = kept(objects)
    match harm:
        case "away":
            objects.away = True
        case "gone":
            objects.contents.clear()
        case "changed":
            objects.contents["acme", "art_1"] = RAW + b" "
        case "another value":
            about = kept(objects, RAW.replace(b"1.50", b"1.51"))
        case "no json":
            about = kept(objects, b"\xff{")
        case _:
            about = about.evolve(tenant="globex")
    with pytest.raises(raised):
        await KeptPayloads(objects).whole(about)


async def test_the_memory_for_payloads_is_bounded() -> None:
    """Requirements: T3"""
    objects = MemoryObjects()
    payloads = KeptPayloads(objects, cache_bytes_max=2 * len(RAW))
    abouts = [kept(objects, artifact_id=f"art_{number}") for number in range(3)]
    for about in (*abouts, abouts[2], abouts[1]):
        await payloads.whole(about)
    assert objects.reads == 3
    await payloads.whole(abouts[0])
    assert objects.reads == 4


class Plant:
    """A process that reads payloads from an object store."""

    def __init__(self, objects: MemoryObjects) -> None:
        self.ledger = Ledger()
        self.ledger.now = real_now()
        self.process = Process(self.ledger)
        self.queue = FinishedQueue("alpha")
        self.target = FakeTarget()
        lines = {("acme", "alpha"): Line(Connection("acme", "alpha", {}), self.target)}
        payloads = KeptPayloads(objects)
        self.execution = Execution(
            lines, {"alpha": self.queue}, self.ledger, NoCrash(), "adapters#1", payloads=payloads
        )

    async def sent(self, about: Operation) -> Outcome:
        self.process.deliver(execute(1, of=about, now=self.ledger.now))
        job = self.process.sends[-1]
        job = SendJob(job.row, job.attempt, job.declaration, monotonic() + 5, job.traceparent)
        self.execution.start(job)
        finished = await self._finished()
        assert finished.job is job  # the ledger's row keeps the reduced payload
        outcome: Outcome = finished.outcome
        return outcome

    async def looked(self, about: Operation) -> Finding:
        self.process.deliver(find(2, of=about))
        self.execution.start(self.process.looks[-1])
        finding: Finding = (await self._finished()).finding
        return finding

    async def _finished(self) -> Any:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                for delivery in await self.queue.fetch(1):
                    return delivery.message.finished


async def test_the_adapter_gets_the_whole_payload_and_the_ledger_keeps_the_reduced_one() -> None:
    """Requirements: X1, E2"""
    objects = MemoryObjects()
    plant, about = Plant(objects), kept(objects)
    assert (await plant.sent(about)).status is ReceiptStatus.CONFIRMED
    assert plant.target.calls[0].operation.payload == WHOLE
    assert plant.process.row().operation.payload == {"slug": "s"}
    await plant.execution.close()


@pytest.mark.parametrize(
    ("harm", "status", "error_class", "code"),
    [
        ("away", ReceiptStatus.NOT_SENT, ErrorClass.TRANSIENT, "payload_unavailable"),
        ("gone", ReceiptStatus.REJECTED, ErrorClass.TRANSIENT, "payload_missing"),
        ("changed", ReceiptStatus.REJECTED, ErrorClass.PERMANENT, "payload_invalid"),
    ],
)
async def test_without_its_payload_nothing_is_sent_and_nothing_is_known(
    harm: str, status: ReceiptStatus, error_class: ErrorClass, code: str
) -> None:
    """An attempt says that nothing was sent, a look says that it does not know; the adapter is never called.

    Requirements: X4, X5, L16
    """
    objects = MemoryObjects()
    plant, about = Plant(objects), kept(objects)
    match harm:
        case "away":
            objects.away = True
        case "gone":
            objects.contents.clear()
        case _:
            objects.contents["acme", "art_1"] = RAW + b" "
    outcome = await plant.sent(about)
    assert (outcome.status, outcome.error_class, outcome.error_code) == (status, error_class, code)
    finding = await plant.looked(about)
    assert (finding.verdict, finding.reason) == (FindVerdict.UNKNOWN, "payload_unavailable")
    assert plant.target.calls == []
    await plant.execution.close()


class Genuine:
    """Verifies every token as the claims that the test wants."""

    def __init__(self, claims: GrantClaims) -> None:
        self.claims = claims

    def verify(self, system: str, token: str) -> GrantClaims | str:
        return self.claims


class Quiet:
    """Nothing is revoked or frozen."""

    stale = False

    def revoked(self, kind: str, object_id: str | None) -> bool:
        return False

    def freeze_of(self, fields: Any, *, compensation: bool = False) -> Any:
        return None


def test_a_grant_is_bound_to_the_whole_payload() -> None:
    """The reduced payload has another hash than the granted one, and that is how it should be; a whole one may not.

    Requirements: G5, X1
    """
    now = real_now()
    about = kept(MemoryObjects())
    task = execute(1, of=about, now=now)
    claims = GrantClaims.model_construct(
        **dict.fromkeys(GrantClaims.model_fields)
        | {
            "iss": "trueup-gateway",
            "aud": "adapter:alpha",
            "tenant": "acme",
            "op": about.command_id,
            "fence": 1,
            "command_type": about.command_type,
            "resource": about.target.resource,
            "payload_sha256": about.payload_sha256,
            "declaration_sha256": about.declaration_sha256,
            "epoch": 0,
            "iat": int(now.timestamp()),
            "exp": int(now.timestamp()) + 60,
            "compensation": False,
        }
    )
    authority = GrantAuthority(Genuine(claims), Quiet())
    assert authority.check(task, DECLARATION, now) == claims
    inline = task.model_copy(update={"operation": about.evolve(payload_ref=None)})
    assert authority.check(inline, DECLARATION, now) == "payload_hash"
    other = claims.model_copy(update={"payload_sha256": hashlib.sha256(b"other").hexdigest()})
    assert str(GrantAuthority(Genuine(other), Quiet()).check(task, DECLARATION, now)).startswith("grant_")
