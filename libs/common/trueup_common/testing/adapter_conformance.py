"""The conformance suite of adapters: what every adapter must show against a world that fails on command.

A package outside this repository subclasses `AdapterConformance`, names its command types and gives a fixture `world`;
the tests then run against its own stand-in of the external system.

    class TestMine(AdapterConformance):
        command_types = ("mine.create",)

        @pytest_asyncio.fixture
        async def world(self):
            async with MyWorld() as world:
                yield world
"""

import asyncio
import warnings
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar, Final, Protocol

import jsonschema_rs
import pytest

from trueup_common.contracts.adapter import Adapter, Call, Connection, Outcome, SlotLost, Target
from trueup_common.contracts.canonical import digest
from trueup_common.contracts.compare import NORMALISERS, same
from trueup_common.contracts.declaration import CommandDeclaration, Establishes, Repair, is_about, object_of
from trueup_common.contracts.ids import attempt_id, new_id
from trueup_common.contracts.observation import Finding, Observation
from trueup_common.contracts.pointer import fill, take
from trueup_common.contracts.states import EffectClass, ErrorClass, FindVerdict, ProbeVerdict, ReceiptStatus
from trueup_common.contracts.task import Operation, ProbeElement
from trueup_common.contracts.task import Target as TaskTarget

PATIENCE_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Case:
    """One command ready to be performed: the world already holds what it acts on."""

    resource: str
    payload: dict[str, Any]
    expected_version: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)


class ConformanceWorld(Protocol):
    """A stand-in of the external system with fault knobs. "Writes" are the requests that the case's command sends."""

    adapter: Adapter
    connection: Connection
    unreachable: Connection
    """A connection to a place where nothing listens."""
    unreadable: Connection | None
    """A connection whose read credential is wrong while its write credential is right; None where there is no such."""

    async def case(self, command_type: str) -> Case:
        """Prepare the world for one command of this type."""
        ...

    async def effects_count(self) -> int:
        """How many effects the world has really seen."""
        ...

    async def lose_answer(self) -> None:
        """The next write happens, its answer is lost."""
        ...

    async def drop_request(self) -> None:
        """The next write reaches the world, nothing happens, the connection is cut."""
        ...

    async def delay(self, seconds: float) -> None:
        """The next write happens only after so long."""
        ...

    async def answer(self, status: int, headers: dict[str, str], body: Any) -> None:
        """The next write does not happen and is answered with this."""
        ...

    async def answer_unreadably(self) -> None:
        """The next write happens and is answered with a success that is not what the API promises."""
        ...

    async def deny_reads(self) -> None:
        """From now on reads do not see what they are allowed to see."""
        ...

    async def heal(self) -> None:
        """No fault stands any more."""
        ...

    async def remove(self, element: ProbeElement) -> bool:
        """An outsider removes the object of this element; False where that cannot be done here."""
        ...


class Sending:
    """The service's side of a call: whether the adapter passed `may_send`, and what it kept."""

    def __init__(self, *, slot_lost: bool = False) -> None:
        self.slot_lost = slot_lost
        self.sends_count = 0
        self.begun = asyncio.Event()
        self.cursor: dict[str, Any] | None = None

    def may_send(self) -> None:
        """As the service does it."""
        if self.slot_lost:
            raise SlotLost
        self.sends_count += 1
        self.begun.set()

    async def progress(self, cursor: dict[str, Any]) -> None:
        """As the service does it."""
        self.cursor = cursor


def operation_of(connection: Connection, declaration: CommandDeclaration, case: Case) -> Operation:
    """A new operation."""
    command_id = new_id("cmd")
    return Operation(
        command_id=command_id,
        workflow_id=new_id("wf"),
        tenant=connection.tenant,
        command_type=declaration.type,
        declaration_sha256=declaration.sha256,
        target=TaskTarget(system=declaration.system, resource=case.resource, expected_version=case.expected_version),
        payload=case.payload,
        payload_sha256=digest(case.payload),
        idempotency_key=command_id,
    )


def call_of(
    operation: Operation, declaration: CommandDeclaration, sending: Sending, *, fence: int = 1, was_sent: bool = False
) -> Call:
    """A call for an operation."""
    return Call(
        operation=operation,
        declaration=declaration,
        attempt_id=attempt_id(operation.command_id, fence),
        fence=fence,
        timeout_seconds=declaration.timeout_seconds,
        may_send=sending.may_send,
        progress=sending.progress,
        cursor=sending.cursor,
        sent_before=datetime(2020, 1, 1, tzinfo=UTC) if was_sent else None,
    )


def elements_of(declaration: CommandDeclaration, operation: Operation, receipt: Any) -> list[ProbeElement]:
    """What the declaration says can be probed after a success."""
    document = _document(operation, receipt)
    return [
        ProbeElement(element=item.element, kind=item.probe.kind, params=fill(document, item.probe.params))
        for item in declaration.establishes
    ]


def _document(operation: Operation, receipt: Any) -> dict[str, Any]:
    return {
        "target": operation.target.model_dump(mode="json"),
        "payload": operation.payload,
        "receipt": receipt,
        "command_id": operation.command_id,
    }


def addressed_by(declaration: CommandDeclaration) -> list[str]:
    """The required members of the payload by which a declaration names its object again."""
    mappings = [item for item in (declaration.compensation, *declaration.repairs()) if item is not None]
    sources = [source for mapping in mappings for source in mapping.payload.values()]
    sources += [source for item in declaration.establishes for source in item.probe.params.values()]
    pointers = {*declaration.identity, *(source.pointer for source in sources if source.pointer)}
    return sorted(pointers & {f"/payload/{name}" for name in declaration.payload_schema.get("required", ())})


@dataclass(frozen=True, slots=True)
class Desired:
    """What is desired of one element, and whose it is."""

    resource: Any
    desired: Any


class Bench:
    """One command type at work in one world."""

    def __init__(self, world: ConformanceWorld, declaration: CommandDeclaration, target: Target, case: Case) -> None:
        self.world = world
        self.declaration = declaration
        self.target = target
        self.operation = operation_of(world.connection, declaration, case)
        self.sending = Sending()
        self._fence = 0

    @classmethod
    async def set_up(cls, world: ConformanceWorld, command_type: str, target: Target | None = None) -> "Bench":
        """Prepare the world and open a target."""
        declaration = next(item for item in world.adapter.declarations if item.type == command_type)
        case = await world.case(command_type)
        return cls(world, declaration, target or world.adapter.open(world.connection), case)

    async def perform(self) -> Outcome:
        """One transmission."""
        self._fence += 1
        return await self.target.perform(call_of(self.operation, self.declaration, self.sending, fence=self._fence))

    async def perform_within(self, seconds: float) -> Outcome | None:
        """Send it, and give up so long after the first byte may have left: how long it looked before does not count."""
        acting, begun = asyncio.create_task(self.perform()), asyncio.create_task(self.sending.begun.wait())
        await asyncio.wait([acting, begun], timeout=PATIENCE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        begun.cancel()
        try:
            async with asyncio.timeout(seconds):
                return await acting
        except TimeoutError:
            return None

    async def find(self, target: Target | None = None) -> Finding:
        """One look."""
        self._fence += 1
        call = call_of(self.operation, self.declaration, self.sending, fence=self._fence, was_sent=True)
        return await (target or self.target).find(call)

    async def probe(self, receipt: Any, target: Target | None = None) -> Sequence[Observation]:
        """Read all elements."""
        return await (target or self.target).probe(elements_of(self.declaration, self.operation, receipt))

    def repair_of(self, item: Establishes) -> Repair | None:
        """What brings one element back."""
        return self.declaration.repair_of(item)

    def element_of(self, item: Establishes, receipt: Any) -> ProbeElement:
        """One element as it is probed."""
        params = fill(_document(self.operation, receipt), item.probe.params)
        return ProbeElement(element=item.element, kind=item.probe.kind, params=params)

    def facts_of(self, item: Establishes, receipt: Any) -> "Desired":
        """What a success established of one element."""
        document = _document(self.operation, receipt)
        return Desired(take(document, item.resource), take(document, item.value))

    def facts_of_element(self, element: str, receipt: Any) -> "Desired":
        """The same, by the element's name."""
        return self.facts_of(next(item for item in self.declaration.establishes if item.element == element), receipt)

    def mending(self, item: Establishes, receipt: Any, drifted: Observation) -> "Bench":
        """The declared repair of one element, ready to run, as the reconciler offers it."""
        repair = self.repair_of(item)
        assert repair is not None
        payload = fill(_document(self.operation, receipt), repair.payload)
        payload |= {name: getattr(drifted, source) for name, source in repair.binds.items()}
        declaration = next(one for one in self.world.adapter.declarations if one.type == repair.command_type)
        jsonschema_rs.validate(declaration.payload_schema, payload)
        case = Case(resource=self.operation.target.resource, payload=payload)
        assert is_about(declaration, payload, case.resource), "the repair is sent to the object that it mends"
        return Bench(self.world, declaration, self.target, case)


class AdapterConformance:
    """Subclass it, set `command_types` and, where there are any, `read_types`, and give a fixture `world`."""

    command_types: ClassVar[tuple[str, ...]] = ()
    read_types: ClassVar[tuple[str, ...]] = ()
    """Types of the class READ: they cause no effect, so what "writes" says in the world means their first read."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """One test per command type."""
        for name, types in (("command_type", self.command_types), ("read_type", self.read_types)):
            if name in metafunc.fixturenames:
                metafunc.parametrize(name, types)

    async def test_declarations_are_pure_data(self, world: ConformanceWorld) -> None:
        """Requirements: X8. Declarations survive a trip through JSON, keep their hash, and refer to each other."""
        declarations = world.adapter.declarations
        types = [declaration.type for declaration in declarations]
        assert len(set(types)) == len(types)
        assert {*self.command_types, *self.read_types} == set(types), "every command type is under test"
        for declaration in declarations:
            again = CommandDeclaration.model_validate_json(declaration.model_dump_json())
            assert again == declaration
            assert again.sha256 == declaration.sha256
            assert declaration.system == world.adapter.system
            assert (declaration.type in self.read_types) == (declaration.effect_class is EffectClass.READ)
            for mapping in (declaration.compensation, *declaration.repairs()):
                assert mapping is None or mapping.command_type in types
            assert all(item.normaliser in NORMALISERS for item in declaration.establishes)
            named = addressed_by(declaration)
            if declaration.acts_on is None and named:
                told = f"{declaration.type} names its object by {', '.join(named)}: declare what it acts_on"
                warnings.warn(told, stacklevel=1)  # until then authority for one object is authority for all of them

    async def test_performs_once_and_proves_it(self, world: ConformanceWorld, command_type: str) -> None:
        """Requirements: X6, E3. A success is one effect, is found again, and its read-back shows the desired values."""
        bench = await Bench.set_up(world, command_type)
        operation = bench.operation
        assert is_about(bench.declaration, operation.payload, operation.target.resource), "a target is what is touched"
        before = await world.effects_count()
        outcome = await bench.perform()
        assert outcome.status is ReceiptStatus.CONFIRMED, outcome
        assert bench.sending.sends_count == 1
        assert await world.effects_count() == before + 1
        document = _document(bench.operation, outcome.result)
        undoing = bench.declaration.compensation
        if undoing is not None:
            declared = next(one for one in world.adapter.declarations if one.type == undoing.command_type)
            object_of(declared, fill(document, undoing.payload))  # raises where it would name nothing
        if bench.declaration.read_back:
            seen = {item.element: item for item in outcome.observations}
            for item in bench.declaration.establishes:
                assert take(document, item.resource) is not None
                assert same(item.normaliser, take(document, item.value), seen[item.element].value)
                assert seen[item.element].proof_of_access
        finding = await bench.find()
        assert finding.verdict is FindVerdict.CONFIRMED, finding
        assert finding.candidates == 1
        assert finding.result is not None
        probed = await bench.probe(outcome.result)
        assert [item.element for item in probed] == [item.element for item in bench.declaration.establishes]
        for item, observation in zip(bench.declaration.establishes, probed, strict=True):
            assert observation.verdict is ProbeVerdict.CONFIRMED
            assert same(item.normaliser, take(document, item.value), observation.value)
        await bench.target.close()

    async def test_a_lost_answer_is_unknown_and_then_found(self, world: ConformanceWorld, command_type: str) -> None:
        """Requirements: X4, E2, E3. The effect happened, the answer did not: unknown, found by evidence, done once."""
        bench = await Bench.set_up(world, command_type)
        before = await world.effects_count()
        await world.lose_answer()
        outcome = await bench.perform()
        assert outcome.status is ReceiptStatus.UNKNOWN, outcome
        finding = await bench.find()
        assert finding.verdict is FindVerdict.CONFIRMED, finding
        assert await world.effects_count() == before + 1
        await bench.target.close()

    async def test_absence_is_proved_before_it_is_sent_again(self, world: ConformanceWorld, command_type: str) -> None:
        """Requirements: X4, E3. Cut before anything happened: unknown at first, then proved absent, then done once."""
        bench = await Bench.set_up(world, command_type)
        before = await world.effects_count()
        await world.drop_request()
        outcome = await bench.perform()
        assert outcome.status is ReceiptStatus.UNKNOWN, outcome
        finding = await bench.find()
        assert finding.verdict is FindVerdict.MISSING, finding
        assert finding.proof_of_access
        assert (await bench.perform()).status is ReceiptStatus.CONFIRMED
        assert await world.effects_count() == before + 1
        await bench.target.close()

    async def test_a_timeout_is_unknown(self, world: ConformanceWorld, command_type: str) -> None:
        """Requirements: X4. An answer that does not come in time leaves an effect that may still happen."""
        bench = await Bench.set_up(world, command_type)
        before = await world.effects_count()
        await world.delay(0.8)
        outcome = await bench.perform_within(0.4)
        assert outcome is None or outcome.status is ReceiptStatus.UNKNOWN
        assert bench.sending.sends_count == 1, "the service must know that the first byte may have left"
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (await bench.find()).verdict is not FindVerdict.CONFIRMED:  # noqa: ASYNC110 - it happens outside
                await asyncio.sleep(0.05)
        assert await world.effects_count() == before + 1
        await bench.target.close()

    async def test_reads_that_are_denied_prove_nothing(self, world: ConformanceWorld, command_type: str) -> None:
        """Requirements: E4. Without proof of access nothing is missing: not the effect, not an element."""
        bench = await Bench.set_up(world, command_type)
        outcome = await bench.perform()
        await world.deny_reads()
        finding = await bench.find()
        assert finding.verdict is FindVerdict.UNKNOWN, finding
        for observation in await bench.probe(outcome.result):
            assert observation.verdict is ProbeVerdict.UNKNOWN
            assert observation.reason
        await world.heal()
        await bench.target.close()

    async def test_reads_never_fall_back_to_the_write_account(self, world: ConformanceWorld, command_type: str) -> None:
        """Requirements: E4. A read account that fails is a doubt, although the write account would have answered."""
        if world.unreadable is None:
            pytest.skip("this system has one credential for both")
        bench = await Bench.set_up(world, command_type)
        outcome = await bench.perform()
        assert outcome.status is ReceiptStatus.CONFIRMED
        blind = world.adapter.open(world.unreadable)
        finding = await bench.find(blind)
        assert finding.verdict is FindVerdict.UNKNOWN, finding
        assert all(
            observation.verdict is ProbeVerdict.UNKNOWN for observation in await bench.probe(outcome.result, blind)
        )
        await blind.close()
        await bench.target.close()

    async def test_a_refused_connection_is_provably_unsent(self, world: ConformanceWorld, command_type: str) -> None:
        """Requirements: X5. Nothing listens: transient, and the service knows that no byte left."""
        target = world.adapter.open(world.unreachable)
        bench = await Bench.set_up(world, command_type, target)
        outcome = await bench.perform()
        assert (outcome.status, outcome.error_class) == (ReceiptStatus.REJECTED, ErrorClass.TRANSIENT), outcome
        assert bench.sending.sends_count == 0
        assert (await bench.find()).verdict is FindVerdict.UNKNOWN
        await target.close()

    async def test_a_lost_slot_sends_nothing(self, world: ConformanceWorld, command_type: str) -> None:
        """Requirements: E5. `may_send` refuses: the adapter lets no byte out."""
        bench = await Bench.set_up(world, command_type)
        bench.sending.slot_lost = True
        before = await world.effects_count()
        with pytest.raises(SlotLost):
            await bench.perform()
        assert await world.effects_count() == before
        await bench.target.close()

    async def test_a_busy_target_is_transient(self, world: ConformanceWorld, command_type: str) -> None:
        """Requirements: X5. 429 with Retry-After is known not to have happened, and says when to come back."""
        bench = await Bench.set_up(world, command_type)
        before = await world.effects_count()
        await world.answer(429, {"retry-after": "7"}, {"error": "slow down"})
        outcome = await bench.perform()
        assert (outcome.status, outcome.error_class) == (ReceiptStatus.REJECTED, ErrorClass.TRANSIENT), outcome
        assert outcome.retry_after_seconds == 7
        assert await world.effects_count() == before
        await bench.target.close()

    async def test_a_refused_credential_is_permanent(self, world: ConformanceWorld, command_type: str) -> None:
        """Requirements: X5. 401 and 403 do not get better by trying again."""
        bench = await Bench.set_up(world, command_type)
        for status, code in ((401, "unauthenticated"), (403, "forbidden")):
            await world.answer(status, {}, {"error": "no"})
            outcome = await bench.perform()
            assert (outcome.status, outcome.error_class) == (ReceiptStatus.REJECTED, ErrorClass.PERMANENT), outcome
            assert outcome.error_code == code
        await bench.target.close()

    async def test_a_failing_target_is_unknown(self, world: ConformanceWorld, command_type: str) -> None:
        """Requirements: X4. 500 after the request went out says nothing about the effect."""
        bench = await Bench.set_up(world, command_type)
        await world.answer(500, {}, {"error": "oops"})
        outcome = await bench.perform()
        assert outcome.status is ReceiptStatus.UNKNOWN, outcome
        await bench.target.close()

    async def test_an_unreadable_success_is_unknown(self, world: ConformanceWorld, command_type: str) -> None:
        """Requirements: X6. 200 with something else in it is no success; looking tells."""
        bench = await Bench.set_up(world, command_type)
        before = await world.effects_count()
        await world.answer_unreadably()
        outcome = await bench.perform()
        assert outcome.status is ReceiptStatus.UNKNOWN, outcome
        assert (await bench.find()).verdict is FindVerdict.CONFIRMED
        assert await world.effects_count() == before + 1
        await bench.target.close()

    async def test_an_object_that_is_gone_is_missing_with_proof(
        self, world: ConformanceWorld, command_type: str
    ) -> None:
        """Requirements: E4, R8. Deleted by an outsider: the probe says missing, and that it was allowed to look."""
        bench = await Bench.set_up(world, command_type)
        outcome = await bench.perform()
        elements = elements_of(bench.declaration, bench.operation, outcome.result)
        if not elements or not await world.remove(elements[0]):
            pytest.skip("nothing to remove")
        for observation in await bench.probe(outcome.result):
            assert observation.verdict is ProbeVerdict.MISSING
            assert observation.proof_of_access
        await bench.target.close()

    async def test_a_repair_brings_back_the_missing_element_alone(
        self, world: ConformanceWorld, command_type: str
    ) -> None:
        """Requirements: R3, E3. An outsider undoes it; the declared repair brings exactly that back, as it was, and
        can be found, and repaired again."""
        disturb = getattr(world, "disturb", world.remove)
        bench = await Bench.set_up(world, command_type)
        outcome = await bench.perform()
        performed, receipt, tried = bench, outcome.result, 0
        for again in range(2):
            item = next((item for item in performed.declaration.establishes if performed.repair_of(item)), None)
            if item is None:
                break
            element = performed.element_of(item, receipt)
            if not await disturb(element):
                break
            (drifted,) = await bench.target.probe([element])
            assert drifted.verdict is not ProbeVerdict.UNKNOWN, drifted
            mending = performed.mending(item, receipt, drifted)
            repaired = await mending.perform()
            assert repaired.status is ReceiptStatus.CONFIRMED, repaired
            assert (await mending.find()).verdict is FindVerdict.CONFIRMED
            await world.effects_count()  # a world that asks for its effects has asked by now
            before, after = performed.facts_of(item, receipt), mending.facts_of_element(item.element, repaired.result)
            assert after.resource == before.resource, "the repair is about the same object"
            seen = {one.element: one for one in await mending.probe(repaired.result)}[item.element]
            assert seen.verdict is ProbeVerdict.CONFIRMED
            assert same(item.normaliser, after.desired, seen.value), f"repair {again + 1}: {seen}"
            performed, receipt, tried = mending, repaired.result, tried + 1
        if not tried:
            pytest.skip("only a person brings this back")
        assert tried == 2, "what was repaired can be repaired again"
        await bench.target.close()

    async def test_a_read_changes_nothing_and_is_repeated_freely(self, world: ConformanceWorld, read_type: str) -> None:
        """Requirements: X4, E3. A read is no effect: it leaves nothing to find, so it is proved absent and done again.

        It brings nothing about, so nothing has to be verified or compensated.
        """
        bench = await Bench.set_up(world, read_type)
        assert bench.declaration.establishes == ()
        assert bench.declaration.compensation is None
        before = await world.effects_count()
        first = await bench.perform()
        assert first.status is ReceiptStatus.CONFIRMED, first
        finding = await bench.find()
        assert (finding.verdict, finding.proof_of_access) == (FindVerdict.MISSING, True), finding
        again = await bench.perform()
        assert again.status is ReceiptStatus.CONFIRMED, again
        assert set(again.result or {}) == set(first.result or {})
        assert await world.effects_count() == before
        await bench.target.close()

    async def test_a_read_without_an_answer_is_no_success(self, world: ConformanceWorld, read_type: str) -> None:
        """Requirements: X4, X5, X6. Lost, cut, failing or unreadable: never confirmed, never final; then it is read."""
        for disturb in (world.lose_answer, world.drop_request, self._failing(world), world.answer_unreadably):
            bench = await Bench.set_up(world, read_type)
            before = await world.effects_count()
            await disturb()
            outcome = await bench.perform()
            assert outcome.status is not ReceiptStatus.CONFIRMED, outcome
            assert outcome.error_class in (ErrorClass.TRANSIENT, ErrorClass.UNKNOWN), outcome
            assert (await bench.find()).verdict is FindVerdict.MISSING
            assert (await bench.perform()).status is ReceiptStatus.CONFIRMED
            assert await world.effects_count() == before
            await bench.target.close()

    @staticmethod
    def _failing(world: ConformanceWorld) -> Callable[[], Awaitable[None]]:
        return lambda: world.answer(500, {}, {"error": "oops"})

    async def test_a_read_is_classified(self, world: ConformanceWorld, read_type: str) -> None:
        """Requirements: X5. Busy is transient and says when to come back; a refused credential is permanent."""
        bench = await Bench.set_up(world, read_type)
        await world.answer(429, {"retry-after": "7"}, {"error": "slow down"})
        outcome = await bench.perform()
        assert (outcome.status, outcome.error_class) == (ReceiptStatus.REJECTED, ErrorClass.TRANSIENT), outcome
        assert outcome.retry_after_seconds == 7
        for status, code in ((401, "unauthenticated"), (403, "forbidden")):
            await world.answer(status, {}, {"error": "no"})
            outcome = await bench.perform()
            assert (outcome.status, outcome.error_class) == (ReceiptStatus.REJECTED, ErrorClass.PERMANENT), outcome
            assert outcome.error_code == code
        await bench.target.close()

    async def test_a_read_out_of_reach_or_time_sends_nothing(self, world: ConformanceWorld, read_type: str) -> None:
        """Requirements: X5, E5. Nothing listens, or `send_by` has passed: the service knows that nothing was done."""
        bench = await Bench.set_up(world, read_type)
        away = world.adapter.open(world.unreachable)
        outcome = await away.perform(call_of(bench.operation, bench.declaration, bench.sending))
        assert (outcome.status, outcome.error_class) == (ReceiptStatus.REJECTED, ErrorClass.TRANSIENT), outcome
        assert bench.sending.sends_count == 0
        assert (await bench.find(away)).verdict is FindVerdict.UNKNOWN
        await away.close()
        bench.sending.slot_lost = True
        with pytest.raises(SlotLost):
            await bench.perform()
        await bench.target.close()

    async def test_a_read_needs_its_own_credential(self, world: ConformanceWorld, read_type: str) -> None:
        """Requirements: E4. The read account alone reads; where it sees nothing, nothing is confirmed or missing."""
        bench = await Bench.set_up(world, read_type)
        if world.unreadable is not None:
            blind = world.adapter.open(world.unreadable)
            outcome = await blind.perform(call_of(bench.operation, bench.declaration, bench.sending))
            assert outcome.status is ReceiptStatus.REJECTED, outcome
            assert (await bench.find(blind)).verdict is FindVerdict.UNKNOWN
            await blind.close()
        await world.deny_reads()
        assert (await bench.perform()).status is ReceiptStatus.REJECTED
        assert (await bench.find()).verdict is FindVerdict.UNKNOWN
        await world.heal()
        await bench.target.close()
