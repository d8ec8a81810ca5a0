"""A complete adapter for a small system: `PUT /memo/<key>` stores a text, `GET /memo/<key>` gives it back.

The key is the operation's id, so a second PUT changes nothing and a look-up finds exactly this effect (`native_key`).
"""

from collections.abc import Sequence
from urllib.parse import quote

from trueup_adapters.systems.http import HttpTarget, TransportFailed
from trueup_common.contracts.adapter import Call, Connection, Outcome, confirmed, unknown
from trueup_common.contracts.declaration import CommandDeclaration, Establishes, Probe
from trueup_common.contracts.observation import Finding, Observation
from trueup_common.contracts.pointer import ValueFrom
from trueup_common.contracts.states import EffectClass, Findability, FindVerdict, ProbeVerdict
from trueup_common.contracts.task import ProbeElement
from trueup_common.runtime.clock import real_now

ELEMENT = "memo.text"

PUT = CommandDeclaration(
    type="memo.put",
    system="memo",
    title="Store a memo",
    permission="memo:write",
    effect_class=EffectClass.RETRYABLE,
    payload_schema={
        "type": "object",
        "additionalProperties": False,
        "required": ["text"],
        "properties": {"text": {"type": "string", "maxLength": 10_000}},
    },
    receipt_schema={"type": "object", "required": ["key", "text"]},
    findability=Findability.NATIVE_KEY,
    find_ladder=(Findability.NATIVE_KEY,),
    timeout_seconds=5,
    start_window_seconds=10,
    late_window_seconds=5,
    expected_version="none",
    success_condition="the memo reads back as it was sent",
    establishes=(
        Establishes(
            element=ELEMENT,
            resource=ValueFrom(pointer="/command_id"),
            value=ValueFrom(pointer="/payload/text"),
            probe=Probe(kind=ELEMENT, params={"key": ValueFrom(pointer="/command_id")}),
        ),
    ),
    forward_recovery="retry",
)


class MemoTarget(HttpTarget):
    """The system as one tenant sees it."""

    async def perform(self, call: Call) -> Outcome:
        """One PUT, then a look at what became of it."""
        key = call.operation.command_id
        try:
            answer = await self.write(
                "PUT", _path(key), document={"text": call.operation.payload["text"]}, may_send=call.may_send
            )
        except TransportFailed as failure:
            return failure.outcome()  # knows whether the first byte left: rejected, or unknown
        if answer.document() is None:
            return answer.outcome()  # by the status; an HTML page under 200 is unknown
        seen = await self._look(key)
        if seen.verdict is not ProbeVerdict.CONFIRMED:
            return unknown("read_back_failed", seen.reason or "", external_status=str(answer.status))
        return confirmed({"key": key, "text": seen.value}, external_resource_id=key, observations=(seen,))

    async def find(self, call: Call) -> Finding:
        """Is the effect of this operation there?"""
        key = call.operation.command_id
        seen = await self._look(key)
        there = seen.verdict is ProbeVerdict.CONFIRMED
        return Finding(
            verdict=FindVerdict(seen.verdict.value),
            proof_of_access=seen.proof_of_access,
            evidence="native_key",
            candidates=int(there),
            result={"key": key, "text": seen.value} if there else None,
            observations=(seen,) if there else (),
            reason=seen.reason,
        )

    async def probe(self, elements: Sequence[ProbeElement]) -> Sequence[Observation]:
        """The elements as they are now."""
        return [await self._look(str(element.params["key"])) for element in elements]

    async def _look(self, key: str) -> Observation:
        try:
            answer = await self.read(_path(key))
        except TransportFailed as failure:
            return _doubt(failure.outcome().error_code or "unreachable")
        document = answer.document()
        if document is not None and document.get("key") == key:
            return _seen(ProbeVerdict.CONFIRMED, document.get("text"))
        if answer.status == 404 and _says_missing(answer.body):  # the system itself says so, not a proxy before it
            return _seen(ProbeVerdict.MISSING, None)
        return _doubt(answer.outcome().error_code or "answer_unreadable")


class MemoAdapter:
    """What the entry point `trueup.adapters` names."""

    system = "memo"
    declarations = (PUT,)
    settings = frozenset({"base_url"})

    def open(self, connection: Connection) -> MemoTarget:
        """Raises ValueError for unusable settings."""
        return MemoTarget(connection, str(connection.settings.get("base_url", "")))


ADAPTER = MemoAdapter()


def _path(key: str) -> str:
    return f"/memo/{quote(key, safe='')}"


def _says_missing(body: bytes) -> bool:
    return b'"no such memo"' in body


def _seen(verdict: ProbeVerdict, value: object) -> Observation:
    return Observation(
        element=ELEMENT, verdict=verdict, value=value, observed_at=real_now(), source="memo", proof_of_access=True
    )


def _doubt(reason: str) -> Observation:
    return Observation(
        element=ELEMENT, verdict=ProbeVerdict.UNKNOWN, observed_at=real_now(), source="memo", reason=reason
    )
