"""Starting workflows: what becomes of requests that wait together, given the locked rows they concern.

A key starts one case; a repetition, in the same batch or later, gets it and consumes nothing, but every other check
still applies to it. Of many starts under one capability exactly as many as it has uses left are accepted.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from trueup_common.contracts.states import InstanceStatus
from trueup_gateway.core.acceptance import Standing
from trueup_gateway.core.refusal import Refused
from trueup_gateway.core.workflow_start import (
    Existing,
    Governance,
    NewWorkflow,
    Plan,
    StartRequest,
    check_authority,
    check_start,
    check_uses,
    is_replay,
    new_workflow,
)

StartVerdict = NewWorkflow | Existing | Refused
"""A new case, the case that the key stands for already, or a refusal."""


@dataclass(frozen=True, slots=True)
class KnownStarts:
    """The rows that a batch concerns, and governance as it stands in the same transaction.

    `plan` says what a request would run, given the case that it repeats, if any. It raises Refused.
    """

    standings: Mapping[str, Standing]
    by_key: Mapping[tuple[str, str], Existing]
    governance: Governance
    plan: Callable[[StartRequest, Existing | None], Plan]


def decide_starts(requests: Sequence[StartRequest], known: KnownStarts) -> list[StartVerdict]:
    """One verdict per request, in order; earlier ones of the batch count for later ones."""
    by_key = dict(known.by_key)
    uses: dict[str, int] = {}
    verdicts: list[StartVerdict] = []
    for request in requests:
        verdict = _verdict(request, known, by_key, uses)
        verdicts.append(verdict)
        if isinstance(verdict, NewWorkflow):
            by_key[request.tenant, request.key] = _made(request, verdict)
            uses[request.capability_id] = uses.get(request.capability_id, 0) + 1
    return verdicts


def _verdict(
    request: StartRequest,
    known: KnownStarts,
    by_key: Mapping[tuple[str, str], Existing],
    uses: Mapping[str, int],
) -> StartVerdict:
    try:
        standing = check_authority(request, known.standings.get(request.capability_id), known.governance.now)
        existing = by_key.get((request.tenant, request.key))
        replayed = existing if existing is not None and is_replay(request, existing) else None
        plan = known.plan(request, replayed)
        check_start(request, standing, plan, known.governance)
        if replayed is not None:
            return replayed
        check_uses(standing, uses.get(request.capability_id, 0))
        return new_workflow(request, standing, plan, known.governance, existing)
    except Refused as refused:
        return refused


def _made(request: StartRequest, new: NewWorkflow) -> Existing:
    """What the key of an accepted start stands for from now on."""
    return Existing(
        fingerprint=request.fingerprint,
        workflow_id=request.workflow_id,
        saga_id=request.saga_id,
        status=InstanceStatus.RUNNING,
        revision=new.start.revision,
        version=new.start.version,
        command=False,
    )
