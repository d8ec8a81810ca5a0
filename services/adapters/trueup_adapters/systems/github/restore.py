"""`github.restore_branch`: a branch that somebody deleted points again to the very commit that it held.

A commit outlives its branch for a while, and it has the same name afterwards: the version keeps its identity, and what
would undo the archiving still finds it. A branch that is there is never moved: that it holds other commits is for a
person to look at. The state itself is the evidence; restoring twice changes nothing.
"""

import asyncio
from typing import Any, Final

from trueup_adapters.systems.github.elements import (
    COMMIT,
    CONTENT,
    PRESENT_KIND,
    READ_BACK_PAUSES_SECONDS,
    Place,
    View,
    establish,
    observe,
    resource_of,
    view,
)
from trueup_adapters.systems.github.repository import GitHub, Stopped, message_of, pointed_at
from trueup_adapters.systems.github.schemas import (
    BRANCH,
    PATH,
    REPOSITORY,
    REPOSITORY_OBJECT,
    SHA1,
    SHA256,
    payload_schema,
)
from trueup_adapters.systems.http import Answer, TransportFailed
from trueup_common.contracts.adapter import Call, Outcome, confirmed, rejected, unknown
from trueup_common.contracts.declaration import CommandDeclaration, Drift, Repair
from trueup_common.contracts.observation import Finding
from trueup_common.contracts.pointer import ValueFrom
from trueup_common.contracts.states import EffectClass, ErrorClass, Findability, FindVerdict, RiskLevel

TYPE: Final = "github.restore_branch"
_B, _P, _T = ErrorClass.BUSINESS, ErrorClass.PERMANENT, ErrorClass.TRANSIENT


def repair(commit: str, content: str) -> Repair:
    """The repair of whatever established the commit and content that these pointers name."""
    return Repair(
        command_type=TYPE,
        payload={
            "repository": ValueFrom(pointer="/payload/repository"),
            "branch": ValueFrom(pointer="/payload/branch"),
            "path": ValueFrom(pointer="/payload/path"),
            "commit_sha": ValueFrom(pointer=commit),
            "artifact_sha256": ValueFrom(pointer=content),
        },
        mends=(Drift.MISSING,),
        verification="the branch is there again and points to the same commit",
    )


_PLACE: Final = {
    "repository": "/payload/repository",
    "branch": "/payload/branch",
    "path": "/payload/path",
    "commit_sha": "/payload/commit_sha",
}

DECLARATION: Final = CommandDeclaration(
    type=TYPE,
    system="github",
    title="Restore a branch",
    description="Makes a deleted branch again, at the commit that it held. A branch that is there is not moved.",
    permission="content:archive",
    effect_class=EffectClass.RETRYABLE,
    payload_schema=payload_schema(
        ("repository", "branch", "path", "commit_sha", "artifact_sha256"),
        repository=REPOSITORY,
        branch=BRANCH,
        path=PATH,
        commit_sha=SHA1,
        artifact_sha256=SHA256,
    ),
    receipt_schema={
        "type": "object",
        "required": ["commit_sha", "branch", "repository", "resource"],
        "properties": {
            "commit_sha": SHA1,
            "branch": {"type": "string"},
            "repository": {"type": "string"},
            "resource": {"type": "string"},
        },
    },
    acts_on=REPOSITORY_OBJECT,
    findability=Findability.BUSINESS_KEY,
    find_ladder=(Findability.BUSINESS_KEY,),
    timeout_seconds=20.0,
    start_window_seconds=20.0,
    late_window_seconds=10.0,
    expected_version="none",
    success_condition="GitHub says that the branch points to the commit, or its history holds it",
    establishes=(
        establish(COMMIT, ValueFrom(pointer="/payload/commit_sha"), PRESENT_KIND, **_PLACE),
        establish(CONTENT, ValueFrom(pointer="/payload/artifact_sha256"), PRESENT_KIND, **_PLACE),
    ),
    repair=repair("/payload/commit_sha", "/payload/artifact_sha256"),
    forward_recovery="retry",
    risk=RiskLevel.LOW,
    blast_radius=5,
)


class RestoreBranch:
    """The command."""

    declaration = DECLARATION

    async def perform(self, github: GitHub, call: Call) -> Outcome:
        """Look, make the branch once where it is missing, read back. Stopped leaves it before the effect only."""
        payload = call.operation.payload
        await github.facts(payload["repository"])
        head = (await github.ref(payload["repository"], payload["branch"])).sha
        if head is not None:
            return await _standing(github, call, head, None)
        document = {"ref": f"refs/heads/{payload['branch']}", "sha": payload["commit_sha"]}
        try:
            answer = await github.change("POST", f"/repos/{payload['repository']}/git/refs", document, call)
        except TransportFailed as failure:
            return failure.outcome()
        if answer.status == 422:
            return await _refused(github, call, answer)
        made = answer.document()
        if made is None:
            return github.outcome(answer)
        if pointed_at(made) != payload["commit_sha"]:
            return unknown("answer_contradictory", answer.detail(), external_status=str(answer.status))
        return await _success(github, call, payload["commit_sha"], answer)

    async def find(self, github: GitHub, call: Call) -> Finding:
        """The state itself is the evidence. Stopped may leave it."""
        payload, evidence = call.operation.payload, Findability.BUSINESS_KEY.value
        head = (await github.ref(payload["repository"], payload["branch"], reader=True)).sha
        if head is None:
            denied = await github.prove_access(payload["repository"])
            if denied:
                return Finding(verdict=FindVerdict.UNKNOWN, reason=denied)
            return Finding(verdict=FindVerdict.MISSING, proof_of_access=True, evidence=evidence)
        if not await github.contains(payload["repository"], head, payload["commit_sha"], reader=True):
            return Finding(verdict=FindVerdict.AMBIGUOUS, proof_of_access=True, reason="branch_differs")
        content = await github.content_sha256(payload["repository"], payload["path"], head)
        return Finding(
            verdict=FindVerdict.CONFIRMED,
            proof_of_access=True,
            evidence=evidence,
            candidates=1,
            result=_result(call),
            external_resource_id=payload["commit_sha"],
            external_version=head,
            observations=observe(View(head, has_commit=True, content_sha256=content), _place(call)),
        )


def _place(call: Call) -> Place:
    payload = call.operation.payload
    return Place(payload["repository"], payload["branch"], payload["path"], payload["commit_sha"])


def _result(call: Call) -> dict[str, Any]:
    payload = call.operation.payload
    return {
        "commit_sha": payload["commit_sha"],
        "branch": payload["branch"],
        "repository": payload["repository"],
        "resource": resource_of(payload["repository"], payload["branch"], payload["path"]),
    }


async def _standing(github: GitHub, call: Call, head: str, answer: Answer | None) -> Outcome:
    """The branch is there: with the commit it is as desired, without it somebody has to look. Raises Stopped."""
    payload = call.operation.payload
    if await github.contains(payload["repository"], head, payload["commit_sha"]):
        return await _success(github, call, head, answer)
    detail = f"the branch {payload['branch']} points to {head}, which does not hold {payload['commit_sha']}"
    return rejected(_B, "version_conflict", detail)


async def _refused(github: GitHub, call: Call, answer: Answer) -> Outcome:
    """GitHub made no branch: somebody was faster, or the commit is gone for good."""
    words, status = message_of(answer), str(answer.status)
    if "object does not exist" in words:
        return rejected(_P, "commit_gone", answer.detail(), external_status=status)
    if "already exists" not in words:
        return github.outcome(answer)
    try:
        head = (await github.ref(call.operation.payload["repository"], call.operation.payload["branch"])).sha
        if head is not None:
            return await _standing(github, call, head, answer)
    except Stopped:
        pass
    return rejected(_T, "ref_not_visible", answer.detail(), external_status=status)


async def _success(github: GitHub, call: Call, head: str, answer: Answer | None) -> Outcome:
    """GitHub has spoken; the read token sees it within the window."""
    seen: View | None = None
    for pause in READ_BACK_PAUSES_SECONDS:
        if pause:
            await asyncio.sleep(pause)
        try:
            looked = await view(github, _place(call))
        except Stopped:
            continue
        if looked.has_commit:
            seen = looked
            break
    return confirmed(
        _result(call),
        external_resource_id=call.operation.payload["commit_sha"],
        external_version=head,
        external_status=str(answer.status) if answer is not None else None,
        observations=observe(seen, _place(call)) if seen is not None else (),
    )
