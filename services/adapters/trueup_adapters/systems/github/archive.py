"""`github.archive_version`: one content version as one commit whose name is known before anything is sent.

Blob, tree and commit refer to nothing and nobody refers to them: storing them is no effect and may be repeated. The one
effect is that a branch starts to hold the commit. Its parent is chosen at the first look and kept in the ledger before
that, so that every later attempt and every look means the same commit. References only move forward (`force: false`),
so a commit whose parent is no longer the head can never arrive late.
"""

import asyncio
import base64
from typing import Any, Final
from urllib.parse import quote

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
from trueup_adapters.systems.github.objects import (
    FILE,
    NoPlace,
    Person,
    Plan,
    blob_sha,
    commit_sha,
    grown_tree_sha,
    kept,
    message_of,
    plans_of,
)
from trueup_adapters.systems.github.repository import Facts, GitHub, Ref, Stopped, pointed_at
from trueup_adapters.systems.github.repository import message_of as words_of
from trueup_adapters.systems.github.restore import repair
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
from trueup_common.contracts.canonical import sha256_hex
from trueup_common.contracts.declaration import CommandDeclaration, Mapping
from trueup_common.contracts.observation import Finding
from trueup_common.contracts.pointer import ValueFrom
from trueup_common.contracts.states import EffectClass, ErrorClass, Findability, FindVerdict, RiskLevel

_B, _P, _T = ErrorClass.BUSINESS, ErrorClass.PERMANENT, ErrorClass.TRANSIENT
_PERSON: Final = {
    "type": "string",
    "maxLength": 200,
    "pattern": "^[^\\x00-\\x1f<>]*[\\p{L}\\p{N}][^\\x00-\\x1f<>]*$",
}

DECLARATION: Final = CommandDeclaration(
    type="github.archive_version",
    system="github",
    title="Archive a content version",
    description="Commits one file to a branch; makes the branch from the default branch where it does not exist.",
    permission="content:archive",
    effect_class=EffectClass.COMPENSABLE,
    payload_schema=payload_schema(
        ("repository", "branch", "path", "content", "message", "author", "authored_at"),
        repository=REPOSITORY,
        branch=BRANCH,
        path=PATH,
        content={"type": "string", "maxLength": 200_000},
        message={
            "type": "string",
            "maxLength": 5000,
            "pattern": "\\S",
            "not": {"pattern": "(?i)trueup-operation|[\\x00\\r]"},
        },
        author={
            "type": "object",
            "additionalProperties": False,
            "required": ["name", "email"],
            "properties": {"name": _PERSON, "email": _PERSON},
        },
        authored_at={
            "type": "string",
            "pattern": "^(19[7-9]\\d|20\\d\\d)-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\d(\\.\\d{1,6})?(Z|[+-]\\d\\d:\\d\\d)$",
        },
    ),
    receipt_schema={
        "type": "object",
        "required": ["commit_sha", "branch", "blob_sha", "artifact_sha256", "branch_created"],
        "properties": {
            "commit_sha": SHA1,
            "branch": {"type": "string"},
            "blob_sha": SHA1,
            "artifact_sha256": SHA256,
            "branch_created": {"type": "boolean"},
            "repository": {"type": "string"},
            "path": {"type": "string"},
            "parent_sha": SHA1,
            "resource": {"type": "string"},
        },
    },
    acts_on=REPOSITORY_OBJECT,
    identity=("/payload/repository", "/payload/branch", "/payload/path", "/payload/content", "/payload/authored_at"),
    findability=Findability.NATIVE_KEY,
    find_ladder=(Findability.NATIVE_KEY, Findability.MARKER),
    timeout_seconds=20.0,
    start_window_seconds=20.0,
    late_window_seconds=10.0,  # GitHub ends a request after ten seconds itself
    success_condition="GitHub says that the branch points to the commit computed beforehand, or its history holds it",
    establishes=(
        establish(
            COMMIT,
            ValueFrom(pointer="/receipt/commit_sha"),
            PRESENT_KIND,
            repository="/payload/repository",
            branch="/payload/branch",
            path="/payload/path",
            commit_sha="/receipt/commit_sha",
        ),
        establish(
            CONTENT,
            ValueFrom(pointer="/receipt/artifact_sha256"),
            PRESENT_KIND,
            repository="/payload/repository",
            branch="/payload/branch",
            path="/payload/path",
            commit_sha="/receipt/commit_sha",
        ),
    ),
    compensation=Mapping(
        command_type="github.delete_branch",
        payload={
            "repository": ValueFrom(pointer="/payload/repository"),
            "branch": ValueFrom(pointer="/payload/branch"),
            "path": ValueFrom(pointer="/payload/path"),
            "expected_sha": ValueFrom(pointer="/receipt/commit_sha"),
        },
        only_if=ValueFrom(pointer="/receipt/branch_created"),
        verification="the branch that this operation made is gone",
    ),
    repair=repair("/receipt/commit_sha", "/receipt/artifact_sha256"),
    forward_recovery="retry",
    manual_policy="somebody with access compares the branch's history with the operation's commit",
    risk=RiskLevel.LOW,
    blast_radius=5,
)


class ArchiveVersion:
    """The command."""

    declaration = DECLARATION

    async def perform(self, github: GitHub, call: Call) -> Outcome:
        """Look, plan, store the objects, move the branch once, read back. Stopped leaves it before the effect only."""
        payload, earlier = call.operation.payload, plans_of(call.cursor)
        facts = await github.facts(payload["repository"])
        if facts.is_archived:
            raise Stopped(rejected(_P, "repository_archived", f"{payload['repository']} is archived"))
        ref = await github.ref(payload["repository"], payload["branch"])
        landed = await _landed(github, call, earlier, ref.sha)
        if landed:
            return await _success(github, call, landed, ref.sha, None)
        plan = await _plan(github, call, facts, ref, earlier)
        if plan not in earlier:
            await call.progress(kept([*earlier, plan]))
        await _store_objects(github, call, plan)
        try:
            answer = await _point(github, call, plan)
        except TransportFailed as failure:
            return failure.outcome()
        if answer.status in (409, 422):
            return await _contested(github, call, plan, answer, was_tried=plan in earlier, plans=[*earlier, plan])
        document = answer.document()
        if document is None:
            return github.outcome(answer)
        if pointed_at(document) != plan.commit:
            return unknown("answer_contradictory", answer.detail(), external_status=str(answer.status))
        return await _success(github, call, plan, plan.commit, answer)

    async def find(self, github: GitHub, call: Call) -> Finding:
        """By the commit's own name, then by the trailer in its message. Stopped may leave it."""
        payload, plans = call.operation.payload, plans_of(call.cursor)
        ref = await github.ref(payload["repository"], payload["branch"], reader=True)
        if ref.sha is not None:
            held = [
                plan
                for plan in plans
                if await github.contains(payload["repository"], ref.sha, plan.commit, reader=True)
            ]
            if len(held) > 1:
                return _undecided(FindVerdict.AMBIGUOUS, "effects_duplicated", candidates=len(held))
            if held:
                result = _result(call, held[0].commit, held[0].parent, is_branch_created=held[0].mode == "create")
                return await _found(github, call, ref.sha, result, Findability.NATIVE_KEY)
            marked = await github.marked(payload["repository"], ref.sha, payload["path"], call.operation.command_id)
            if marked:
                return await self._by_marker(github, call, ref.sha, marked, is_planned=bool(plans))
        denied = await github.prove_access(payload["repository"])
        if denied:
            return Finding(verdict=FindVerdict.UNKNOWN, reason=denied)
        if ref.sha is None and plans and plans[-1].mode == "append":
            return _undecided(FindVerdict.AMBIGUOUS, "branch_gone")
        return Finding(verdict=FindVerdict.MISSING, proof_of_access=True, evidence=Findability.NATIVE_KEY.value)

    async def _by_marker(
        self, github: GitHub, call: Call, head: str, marked: list[str], *, is_planned: bool
    ) -> Finding:
        """A commit that names the operation without being the planned one was rewritten by somebody."""
        if len(marked) > 1 or is_planned:
            reason = "effects_duplicated" if len(marked) > 1 else "commit_rewritten"
            return _undecided(FindVerdict.AMBIGUOUS, reason, candidates=len(marked))
        # Without the ledger's plan nobody knows who made the branch, so it is nobody's to delete.
        result = _result(call, marked[0], None, is_branch_created=False)
        return await _found(github, call, head, result, Findability.MARKER)


def _undecided(verdict: FindVerdict, reason: str, *, candidates: int = 0) -> Finding:
    return Finding(verdict=verdict, reason=reason, candidates=candidates, proof_of_access=True)


def _content(call: Call) -> bytes:
    return str(call.operation.payload["content"]).encode()


def _result(call: Call, commit: str, parent: str | None, *, is_branch_created: bool) -> dict[str, Any]:
    payload, content = call.operation.payload, _content(call)
    found = {
        "commit_sha": commit,
        "branch": payload["branch"],
        "blob_sha": blob_sha(content),
        "artifact_sha256": sha256_hex(content),
        "branch_created": is_branch_created,
        "repository": payload["repository"],
        "path": payload["path"],
        "resource": resource_of(payload["repository"], payload["branch"], payload["path"]),
    }
    return found | ({"parent_sha": parent} if parent is not None else {})


def _place(call: Call, commit: str) -> Place:
    payload = call.operation.payload
    return Place(payload["repository"], payload["branch"], payload["path"], commit)


async def _landed(github: GitHub, call: Call, plans: list[Plan], head: str | None) -> Plan | None:
    """The plan whose commit the branch holds. Raises Stopped."""
    if head is not None:
        for plan in reversed(plans):
            if await github.contains(call.operation.payload["repository"], head, plan.commit):
                return plan
    return None


async def _plan(github: GitHub, call: Call, facts: Facts, ref: Ref, earlier: list[Plan]) -> Plan:
    """How the commit gets into the branch: as planned before where that still fits. Raises Stopped."""
    payload, expected = call.operation.payload, call.operation.target.expected_version
    if earlier and earlier[-1].fits(ref.sha):
        return earlier[-1]
    if earlier and earlier[-1].mode == "create":
        raise Stopped(_taken(call, ref.sha))
    if expected is not None and ref.sha != expected:
        raise Stopped(_moved(call, ref.sha))
    parent = ref.sha
    if parent is None:
        start = await github.ref(payload["repository"], facts.default_branch)
        parent = start.sha
        if parent is None:
            code = "repository_empty" if start.is_empty else "default_branch_missing"
            raise Stopped(rejected(_P, code, f"{payload['repository']} has nothing to start a branch from"))
    blob = blob_sha(_content(call))
    root = await github.tree_of(payload["repository"], parent)
    levels = await github.levels(payload["repository"], root, payload["path"])
    try:
        tree = grown_tree_sha(levels, payload["path"], blob)
        commit = commit_sha(tree, parent, _person(call), _message(call))
    except NoPlace as error:
        raise Stopped(rejected(_B, "path_taken", f"{error} is something else on the branch")) from error
    except ValueError as error:
        raise Stopped(rejected(_P, "payload_invalid", str(error))) from error
    mode: Final = "create" if ref.sha is None else "append"
    return Plan(mode=mode, parent=parent, base_tree=root, tree=tree, blob=blob, commit=commit)


def _person(call: Call) -> Person:
    payload = call.operation.payload
    return Person.of(payload["author"]["name"], payload["author"]["email"], payload["authored_at"])


def _message(call: Call) -> str:
    return message_of(call.operation.payload["message"], call.operation.command_id)


async def _store_objects(github: GitHub, call: Call, plan: Plan) -> None:
    """Blob, tree and commit, each compared with the name computed here. Raises Stopped."""
    payload, person = call.operation.payload, _person(call)
    author = {"name": person.name, "email": person.email, "date": person.date}
    content = base64.b64encode(_content(call)).decode()
    entry = {"path": payload["path"], "mode": FILE, "type": "blob", "sha": plan.blob}
    commit = {
        "message": _message(call),
        "tree": plan.tree,
        "parents": [plan.parent],
        "author": author,
        "committer": author,
    }
    repository = payload["repository"]
    await github.store(repository, "blobs", {"content": content, "encoding": "base64"}, plan.blob, call)
    await github.store(repository, "trees", {"base_tree": plan.base_tree, "tree": [entry]}, plan.tree, call)
    await github.store(repository, "commits", commit, plan.commit, call)


async def _point(github: GitHub, call: Call, plan: Plan) -> Answer:
    """The one effect. Raises TransportFailed or SlotLost."""
    place, branch = f"/repos/{call.operation.payload['repository']}/git/refs", call.operation.payload["branch"]
    if plan.mode == "create":
        return await github.change("POST", place, {"ref": f"refs/heads/{branch}", "sha": plan.commit}, call)
    return await github.change("PATCH", f"{place}/heads/{quote(branch)}", {"sha": plan.commit, "force": False}, call)


async def _contested(
    github: GitHub, call: Call, plan: Plan, answer: Answer, *, was_tried: bool, plans: list[Plan]
) -> Outcome:
    """The branch did not take the commit. An earlier attempt may have been faster, so the branch itself is asked."""
    head, is_seen = None, True
    try:
        head = (await github.ref(call.operation.payload["repository"], call.operation.payload["branch"])).sha
        landed = await _landed(github, call, plans, head)
        if landed:
            return await _success(github, call, landed, head, answer)
    except Stopped:
        is_seen = False
    words, status = words_of(answer), str(answer.status)
    if "object does not exist" in words:
        return rejected(_T, "object_not_visible", answer.detail(), external_status=status)
    is_about_place = any(part in words for part in ("already exists", "does not exist", "fast forward"))
    if was_tried and is_about_place and (not is_seen or plan.fits(head)):
        # The write path says that the branch is not as the read path shows it: it may hold our own earlier commit.
        return unknown("ref_not_visible", answer.detail(), external_status=status)
    if is_about_place:
        return _taken(call, head) if plan.mode == "create" else _moved(call, head)
    if "reference update failed" in words:
        # GitHub says so of a name that cannot be, and now and then for no reason at all: the budget decides.
        return rejected(_T, "ref_update_failed", answer.detail(), external_status=status)
    return github.outcome(answer)


def _taken(call: Call, head: str | None) -> Outcome:
    return rejected(_B, "foreign_object", f"the branch {call.operation.payload['branch']} was made by others: {head}")


def _moved(call: Call, head: str | None) -> Outcome:
    """The branch is not where it was: a conflict for a caller who bound its version, else the next look decides."""
    expected = call.operation.target.expected_version
    detail = f"the branch {call.operation.payload['branch']} points to {head}"
    if expected is not None:
        return rejected(_B, "version_conflict", f"{detail}, not to {expected}")
    return rejected(_T, "ref_moved", detail)


async def _read_back(github: GitHub, call: Call, commit: str) -> View | None:
    """What the read token sees, once it sees the commit; None while GitHub's reads lag behind its writes."""
    for pause in READ_BACK_PAUSES_SECONDS:
        if pause:
            await asyncio.sleep(pause)
        try:
            seen = await view(github, _place(call, commit))
        except Stopped:
            continue
        if seen.has_commit:
            return seen
    return None


async def _success(github: GitHub, call: Call, plan: Plan, head: str | None, answer: Answer | None) -> Outcome:
    """The write path has spoken. What reads do not show yet is owed within the window and is not called verified."""
    seen = await _read_back(github, call, plan.commit)
    return confirmed(
        _result(call, plan.commit, plan.parent, is_branch_created=plan.mode == "create"),
        external_resource_id=plan.commit,
        external_version=head,
        external_status=str(answer.status) if answer is not None else None,
        observations=observe(seen, _place(call, plan.commit)) if seen is not None else (),
    )


async def _found(github: GitHub, call: Call, head: str, result: dict[str, Any], rung: Findability) -> Finding:
    place = _place(call, result["commit_sha"])
    content = await github.content_sha256(place.repository, str(place.path), head)
    return Finding(
        verdict=FindVerdict.CONFIRMED,
        proof_of_access=True,
        evidence=rung.value,
        candidates=1,
        result=result,
        external_resource_id=result["commit_sha"],
        external_version=head,
        observations=observe(View(head, has_commit=True, content_sha256=content), place),
    )
