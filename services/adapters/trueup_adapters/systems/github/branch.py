"""`github.delete_branch`: a branch goes only while it points exactly where the caller expects.

Deleting has no precondition at GitHub, so the look comes directly before it. A branch that a read does not show may
only be lagging; then the write path is asked with an update that changes nothing.
"""

import asyncio
from typing import Any, Final
from urllib.parse import quote

from trueup_adapters.systems.github.elements import (
    ABSENT,
    ABSENT_KIND,
    COMMIT,
    CONTENT,
    READ_BACK_PAUSES_SECONDS,
    Place,
    View,
    establish,
    observe,
    resource_of,
)
from trueup_adapters.systems.github.repository import GitHub, Stopped, message_of
from trueup_adapters.systems.github.schemas import BRANCH, PATH, REPOSITORY, REPOSITORY_OBJECT, SHA1, payload_schema
from trueup_adapters.systems.http import Answer, TransportFailed
from trueup_common.contracts.adapter import Call, Outcome, confirmed, rejected
from trueup_common.contracts.declaration import CommandDeclaration
from trueup_common.contracts.observation import Finding, Observation
from trueup_common.contracts.pointer import ValueFrom
from trueup_common.contracts.states import EffectClass, ErrorClass, Findability, FindVerdict, RiskLevel

_B: Final = ErrorClass.BUSINESS
_GONE: Final = "reference does not exist"

DECLARATION: Final = CommandDeclaration(
    type="github.delete_branch",
    system="github",
    title="Delete a branch",
    description="Deletes a branch that points to the expected commit and to no other.",
    permission="content:archive",
    effect_class=EffectClass.RETRYABLE,
    payload_schema=payload_schema(
        ("repository", "branch", "expected_sha"), repository=REPOSITORY, branch=BRANCH, expected_sha=SHA1, path=PATH
    ),
    receipt_schema={
        "type": "object",
        "required": ["branch", "repository", "resource"],
        "properties": {
            "branch": {"type": "string"},
            "repository": {"type": "string"},
            "resource": {"type": "string"},
            "deleted_sha": SHA1,
        },
    },
    acts_on=REPOSITORY_OBJECT,
    findability=Findability.BUSINESS_KEY,
    find_ladder=(Findability.BUSINESS_KEY,),
    timeout_seconds=20.0,
    start_window_seconds=20.0,
    late_window_seconds=10.0,
    expected_version="none",
    success_condition="GitHub says that the branch is deleted, or that there is none",
    establishes=tuple(
        establish(
            element,
            ValueFrom(const=ABSENT),
            ABSENT_KIND,
            repository="/payload/repository",
            branch="/payload/branch",
            path="/payload/path",
        )
        for element in (COMMIT, CONTENT)
    ),
    forward_recovery="retry",
    risk=RiskLevel.LOW,
    blast_radius=10,
)


class DeleteBranch:
    """The command."""

    declaration = DECLARATION

    async def perform(self, github: GitHub, call: Call) -> Outcome:
        """Look, refuse what does not fit, delete once, read back. Stopped leaves it before the effect only."""
        payload = call.operation.payload
        facts = await github.facts(payload["repository"])
        if payload["branch"] == facts.default_branch:
            raise Stopped(rejected(_B, "default_branch", f"{payload['branch']} is the default branch"))
        head = (await github.ref(payload["repository"], payload["branch"])).sha
        if head is not None and head != payload["expected_sha"]:
            return _differs(call, head)
        try:
            if head is None:
                outcome = await self._confirm_absence(github, call)
                if outcome is not None:
                    return outcome
            answer = await github.change("DELETE", _place(call), None, call)
        except TransportFailed as failure:
            return failure.outcome()
        if answer.status == 204 or (answer.status == 422 and _GONE in message_of(answer)):
            return await _success(github, call, answer)
        return github.outcome(answer)

    async def _confirm_absence(self, github: GitHub, call: Call) -> Outcome | None:
        """What the write path says of a branch that no read shows; None where it is there after all, as expected.

        Setting a branch to where it is expected changes nothing. Raises TransportFailed or SlotLost.
        """
        expected = call.operation.payload["expected_sha"]
        answer = await github.change("PATCH", _place(call), {"sha": expected, "force": False}, call)
        if answer.document() is not None:
            return None
        words = message_of(answer)
        if answer.status == 422 and (_GONE in words or "object does not exist" in words):
            denied = await github.prove_access(call.operation.payload["repository"], reader=False)
            if denied is None:
                return await _success(github, call, answer)
            return rejected(ErrorClass.TRANSIENT, denied, external_status=str(answer.status))
        if answer.status == 422 and "fast forward" in words:
            return _differs(call, "another commit")
        return github.outcome(answer)

    async def find(self, github: GitHub, call: Call) -> Finding:
        """The state itself is the evidence: a branch that is gone is deleted, whoever did it. Stopped may leave it."""
        payload = call.operation.payload
        head = (await github.ref(payload["repository"], payload["branch"], reader=True)).sha
        if head is None:
            denied = await github.prove_access(payload["repository"])
            if denied:
                return Finding(verdict=FindVerdict.UNKNOWN, reason=denied)
            return Finding(
                verdict=FindVerdict.CONFIRMED,
                proof_of_access=True,
                evidence=Findability.BUSINESS_KEY.value,
                candidates=1,
                result=_result(call),
                external_resource_id=payload["branch"],
                observations=_observed(call),
            )
        if await github.contains(payload["repository"], head, payload["expected_sha"], reader=True):
            evidence = Findability.BUSINESS_KEY.value
            return Finding(verdict=FindVerdict.MISSING, proof_of_access=True, evidence=evidence)
        # Deleted and made again by somebody, or moved away: the branch alone cannot tell.
        return Finding(verdict=FindVerdict.AMBIGUOUS, proof_of_access=True, reason="branch_differs")


def _place(call: Call) -> str:
    payload = call.operation.payload
    return f"/repos/{payload['repository']}/git/refs/heads/{quote(payload['branch'])}"


def _differs(call: Call, head: str) -> Outcome:
    payload = call.operation.payload
    detail = f"the branch {payload['branch']} points to {head}, not to {payload['expected_sha']}"
    return rejected(_B, "version_conflict", detail)


def _result(call: Call) -> dict[str, Any]:
    payload = call.operation.payload
    return {
        "branch": payload["branch"],
        "repository": payload["repository"],
        "resource": resource_of(payload["repository"], payload["branch"], payload.get("path")),
        "deleted_sha": payload["expected_sha"],
    }


def _observed(call: Call) -> tuple[Observation, ...]:
    payload = call.operation.payload
    place = Place(payload["repository"], payload["branch"], payload.get("path"), None)
    return observe(View(None), place, wants_absence=True)


async def _success(github: GitHub, call: Call, answer: Answer) -> Outcome:
    """The write path has spoken; the reads follow within the window."""
    observations: tuple[Observation, ...] = ()
    payload = call.operation.payload
    for pause in READ_BACK_PAUSES_SECONDS:
        if pause:
            await asyncio.sleep(pause)
        try:
            head = (await github.ref(payload["repository"], payload["branch"], reader=True)).sha
        except Stopped:
            continue
        if head is None:
            if await github.prove_access(payload["repository"]) is None:
                observations = _observed(call)
            break
    return confirmed(
        _result(call),
        external_resource_id=payload["branch"],
        external_status=str(answer.status),
        observations=observations,
    )
