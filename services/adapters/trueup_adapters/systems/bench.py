"""The bench adapter: one POST to a plain stub, as light as an effect can be, for measuring what Trueup itself costs.

The stub takes the operation's id as its native key, so an effect can be found again exactly. `make` and `unmake` are
steps of a saga: the stub is told which step of which unit they are, and refuses for good where it is asked to.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from trueup_adapters.core.classify import classify_failure
from trueup_adapters.systems.http import Answer, HttpTarget, TransportFailed
from trueup_common.contracts.adapter import Call, Connection, Outcome, confirmed, unknown
from trueup_common.contracts.declaration import CommandDeclaration, Establishes, Probe
from trueup_common.contracts.declaration import Mapping as CommandMapping
from trueup_common.contracts.observation import Finding, Observation
from trueup_common.contracts.pointer import ValueFrom
from trueup_common.contracts.states import EffectClass, Findability, FindVerdict, ProbeVerdict
from trueup_common.contracts.task import ProbeElement
from trueup_common.runtime.clock import real_now

SYSTEM: Final = "bench"
ELEMENT: Final = "bench.effect"


def _declare(command_type: str, title: str, *, read_back: bool) -> CommandDeclaration:
    probe = Probe(kind="bench.effect", params={"key": ValueFrom(pointer="/command_id")})
    element = Establishes(
        element=ELEMENT,
        resource=ValueFrom(pointer="/command_id"),
        value=ValueFrom(pointer="/command_id"),
        probe=probe,
    )
    return CommandDeclaration(
        type=command_type,
        system=SYSTEM,
        title=title,
        permission="bench:write",
        effect_class=EffectClass.RETRYABLE,
        payload_schema={"type": "object", "maxProperties": 20},
        receipt_schema={"type": "object", "properties": {"ref": {"type": ["string", "null"]}}},
        findability=Findability.NATIVE_KEY,
        find_ladder=(Findability.NATIVE_KEY,),
        timeout_seconds=10.0,
        start_window_seconds=10.0,
        late_window_seconds=5.0,
        expected_version="none",
        success_condition="the stub answers 2xx" + (" and returns the effect under its key" if read_back else ""),
        read_back=read_back,
        establishes=(element,) if read_back else (),
        forward_recovery="retry",
    )


_UNIT: Final = {"type": "string", "minLength": 1, "maxLength": 200}
_STEP: Final = {"type": "integer", "minimum": 1, "maximum": 100}


def _declare_step(
    command_type: str,
    title: str,
    effect_class: EffectClass,
    further: dict[str, Any],
    compensation: CommandMapping | None = None,
) -> CommandDeclaration:
    schema = {
        "type": "object",
        "required": ["unit", "step", *(name for name in further if name == "undoes")],
        "properties": {"unit": _UNIT, "step": _STEP, **further},
        "additionalProperties": False,
    }
    return CommandDeclaration(
        type=command_type,
        system=SYSTEM,
        title=title,
        permission="bench:write",
        effect_class=effect_class,
        payload_schema=schema,
        receipt_schema=POST.receipt_schema,
        acts_on="unit/{/payload/unit}",
        findability=Findability.NATIVE_KEY,
        find_ladder=(Findability.NATIVE_KEY,),
        timeout_seconds=POST.timeout_seconds,
        start_window_seconds=POST.start_window_seconds,
        late_window_seconds=POST.late_window_seconds,
        expected_version="none",
        success_condition=POST.success_condition,
        read_back=False,
        compensation=compensation,
        forward_recovery="retry",
    )


POST: Final = _declare("bench.post", "Post one effect", read_back=False)
POST_VERIFIED: Final = _declare("bench.post_verified", "Post one effect and read it back", read_back=True)
MAKE: Final = _declare_step(
    "bench.make",
    "Make one step of a unit",
    EffectClass.COMPENSABLE,
    {"refuse": {"type": "boolean"}},
    CommandMapping(
        command_type="bench.unmake",
        payload={
            "unit": ValueFrom(pointer="/payload/unit"),
            "step": ValueFrom(pointer="/payload/step"),
            "undoes": ValueFrom(pointer="/command_id"),
        },
        verification="the stub answers 2xx",
    ),
)
UNMAKE: Final = _declare_step(
    "bench.unmake",
    "Unmake one step of a unit",
    EffectClass.RETRYABLE,
    {"undoes": {"type": "string", "minLength": 1, "maxLength": 200}},
)
STEPS: Final = frozenset({MAKE.type, UNMAKE.type})


class BenchTarget(HttpTarget):
    """The stub of one tenant."""

    async def perform(self, call: Call) -> Outcome:
        """POST once; read back where the type says so."""
        key = call.operation.command_id
        headers = {"traceparent": call.traceparent} if call.traceparent else None
        document = {**call.operation.payload, "key": key} if call.declaration.type in STEPS else {"key": key}
        try:
            answer = await self.write("POST", "/effect", document=document, headers=headers, may_send=call.may_send)
        except TransportFailed as failure:
            return failure.outcome()
        answered = answer.document()
        if answered is None:
            return answer.outcome()
        reference = answered.get("effect_id") or answered.get("ref")
        observations: tuple[Observation, ...] = ()
        if call.declaration.read_back:
            observation = await self._observe(key)
            if observation.verdict is not ProbeVerdict.CONFIRMED:
                return unknown("read_back_failed", observation.reason or "", external_status=str(answer.status))
            observations = (observation,)
        return confirmed(
            {"ref": reference},
            external_resource_id=reference if isinstance(reference, str) else None,
            external_status=str(answer.status),
            observations=observations,
        )

    async def find(self, call: Call) -> Finding:
        """Ask for the native key. A 404 in the stub's own words proves access as well as absence."""
        observation, answer = await self._look(call.operation.command_id)
        verdict = FindVerdict(observation.verdict.value)
        document = (answer.document() or {}) if answer is not None else {}
        found = verdict is FindVerdict.CONFIRMED
        count = document.get("count")
        return Finding(
            verdict=verdict,
            proof_of_access=observation.proof_of_access,
            evidence=Findability.NATIVE_KEY.value,
            candidates=(count if isinstance(count, int) and count > 0 else 1) if found else 0,
            result={"ref": document.get("effect_id")} if found else None,
            external_resource_id=str(document["effect_id"]) if found and document.get("effect_id") else None,
            observations=(observation,) if found and call.declaration.read_back else (),
            reason=observation.reason,
        )

    async def probe(self, elements: Sequence[ProbeElement]) -> Sequence[Observation]:
        """Each element is one key."""
        return [await self._observe(str(element.params.get("key", ""))) for element in elements]

    async def _observe(self, key: str) -> Observation:
        return (await self._look(key))[0]

    async def _look(self, key: str) -> tuple[Observation, Answer | None]:
        try:
            answer = await self.read(f"/effect/{quote(key, safe='')}")
        except TransportFailed as failure:
            return _doubt(classify_failure(sent=True, code=failure.code).error_code), None
        document = answer.document()
        if document is not None:
            if document.get("key") != key:
                return _doubt("answer_unreadable"), answer
            return _seen(ProbeVerdict.CONFIRMED, key), answer
        if answer.status == 404 and _says_absent(answer):
            return _seen(ProbeVerdict.MISSING, None), answer
        return _doubt(answer.outcome().error_code), answer


def _says_absent(answer: Answer) -> bool:
    """A 404 of the stub itself, not of something between."""
    try:
        value: Any = answer.json()
    except ValueError:
        return False
    return isinstance(value, Mapping) and value.get("error") == "no such effect"


def _seen(verdict: ProbeVerdict, value: Any) -> Observation:
    return Observation(
        element=ELEMENT, verdict=verdict, value=value, observed_at=real_now(), source="bench", proof_of_access=True
    )


def _doubt(reason: str | None) -> Observation:
    return Observation(
        element=ELEMENT, verdict=ProbeVerdict.UNKNOWN, observed_at=real_now(), source="bench", reason=reason
    )


class BenchAdapter:
    """The entry point."""

    system = SYSTEM
    declarations = (POST, POST_VERIFIED, MAKE, UNMAKE)
    settings = frozenset({"base_url"})

    def open(self, connection: Connection) -> BenchTarget:
        """A target for one connection (`base_url`)."""
        return BenchTarget(connection, str(connection.settings.get("base_url", "")))


ADAPTER: Final = BenchAdapter()
