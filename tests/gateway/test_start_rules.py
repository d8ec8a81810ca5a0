"""The pure rule of starts: whatever waits together, a key starts one case and a capability no more than its uses."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.edge import ARTICLE, DRAFT, PUBLISH, TRASH
from tests.gateway.test_acceptance_rules import standing
from tests.gateway.test_capability_rules import DECISION, NOW

from trueup_common.contracts.states import InstanceStatus
from trueup_common.documents.read import read_document
from trueup_gateway.core.acceptance import Standing
from trueup_gateway.core.refusal import Refused
from trueup_gateway.core.starts import KnownStarts, StartVerdict, decide_starts
from trueup_gateway.core.workflow_start import Existing, Governance, NewWorkflow, Plan, StartRequest

DOCUMENT = read_document(ARTICLE).document
WORKFLOW = DECISION.evolve(workflow="article", document_sha256=DOCUMENT.sha256, definition_version=1)


def request(number: int = 0, **changes: Any) -> StartRequest:
    """One request of a batch."""
    base = StartRequest(
        tenant="acme",
        key="k",
        fingerprint="f",
        capability_id="cap",
        system="workflow",
        resource="article/*",
        payload_sha256=None,
        expected_version=None,
        definition="article",
        version=None,
        input={"slug": "one", "title": "A title"},
        input_sha256="i",
        actions_max=5,
        on_terminal="return",
        workflow_id=f"wf_{number}",
        saga_id=f"saga_{number}",
    )
    return replace(base, **changes)


def capability(name: str, uses_left: int = 1) -> Standing:
    """A capability that lets the workflow start."""
    return standing(name, uses_left, decision=WORKFLOW)


def known(*standings: Standing, by_key: dict[tuple[str, str], Existing] | None = None, **changes: Any) -> KnownStarts:
    """What a batch rests on; nothing is frozen, and policy permits."""
    declarations = {item.type: item for item in (DRAFT, PUBLISH, TRASH)}
    base = KnownStarts(
        standings={item.capability_id: item for item in standings},
        by_key=by_key or {},
        governance=Governance(now=NOW, policy_sha256="p", frozen=lambda _: None, permitted=lambda *_: True),
        plan=lambda wanted, _: Plan(DOCUMENT, wanted.input["slug"], declarations),
    )
    return replace(base, **changes)


def existing(status: InstanceStatus, **changes: Any) -> Existing:
    """A case that the key `k` stands for."""
    base = Existing(
        fingerprint="f",
        workflow_id="wf_old",
        saga_id="saga_old",
        status=status,
        revision=3,
        version=1,
        command=False,
    )
    return replace(base, **changes)


def checks(verdicts: list[StartVerdict]) -> list[str | None]:
    """What each refused request was refused for; None for the others."""
    return [verdict.check or verdict.problem.slug if isinstance(verdict, Refused) else None for verdict in verdicts]


REQUESTS = st.lists(
    st.tuples(st.sampled_from(["k1", "k2", "k3"]), st.sampled_from(["f1", "f2"]), st.sampled_from(["cap1", "cap2"])),
    max_size=25,
)


@given(REQUESTS, st.integers(0, 4), st.integers(0, 4))
def test_keys_and_uses_hold_in_any_batch(wanted: list[tuple[str, str, str]], uses_1: int, uses_2: int) -> None:
    """Each key starts one case, no capability more than its uses, and every repetition gets the first.

    Requirements: L2, I2, G3
    """
    batch = [
        request(number, key=key, fingerprint=fingerprint, capability_id=name)
        for number, (key, fingerprint, name) in enumerate(wanted)
    ]
    uses = {"cap1": uses_1, "cap2": uses_2}
    verdicts = decide_starts(batch, known(*(capability(name, count) for name, count in uses.items())))
    first: dict[str, StartRequest] = {}
    spent: Counter[str] = Counter()
    for item, verdict in zip(batch, verdicts, strict=True):
        owner = first.get(item.key)
        if isinstance(verdict, NewWorkflow):
            assert owner is None and verdict.start.workflow_id == item.workflow_id
            first[item.key] = item
            spent[item.capability_id] += 1
        elif isinstance(verdict, Existing):
            assert owner is not None and (verdict.workflow_id, verdict.fingerprint) == (
                owner.workflow_id,
                "f" + item.fingerprint[1],
            )
            assert owner.fingerprint == item.fingerprint
        elif owner is not None:
            assert verdict.problem.slug == "idempotency-key-reused" and owner.fingerprint != item.fingerprint
        else:
            assert verdict.check == "uses" and spent[item.capability_id] == uses[item.capability_id]
    assert all(spent[name] <= count for name, count in uses.items())


def test_a_refused_start_touches_no_other() -> None:
    """Each is refused for its own flaw, and what is refused neither takes a use nor a key."""

    def plan(wanted: StartRequest, _: Existing | None) -> Plan:
        if wanted.key == "unknown":
            raise Refused("not-found", "There is no such workflow.")
        return proper(wanted, None)

    proper = known().plan
    batch = [
        request(0, key="unknown"),
        request(1, key="foreign", tenant="globex"),
        request(2, key="elsewhere", resource="article/other"),
        request(3, key="bound", payload_sha256="another"),
        request(4, key="large", input={"slug": "one", "title": "x" * 1_000_000}),
        request(5, key="well"),
        request(6, key="late"),
        request(7, key="large"),
    ]
    verdicts = decide_starts(batch, known(capability("cap", 2), plan=plan))
    assert checks(verdicts) == ["not-found", "revoked", "resource", "payload_hash", "too-large", None, None, "uses"]


def test_a_revision_in_a_batch_is_one_case() -> None:
    """Of two that revise the same case, the first takes the key over and the second gets what the first started.

    Requirements: L2
    """
    by_key = {("acme", "k"): existing(InstanceStatus.CLOSED)}
    batch = [request(number, on_terminal="revise") for number in range(2)]
    made, again = decide_starts(batch, known(capability("cap", 5), by_key=by_key))
    assert isinstance(made, NewWorkflow) and isinstance(again, Existing)
    assert (made.revises, made.start.parent_id, made.start.revision) == ("wf_old", "wf_old", 4)
    assert (again.workflow_id, again.revision, again.status) == ("wf_0", 4, InstanceStatus.RUNNING)
    returned = decide_starts([request()], known(capability("cap", 5), by_key=by_key))
    assert returned == [by_key["acme", "k"]]


def test_the_key_of_a_command_starts_nothing() -> None:
    """Neither as a repetition nor as a revision.

    Requirements: I2
    """
    by_key = {("acme", "k"): existing(InstanceStatus.CLOSED, command=True)}
    batch = [request(), request(1, on_terminal="revise")]
    assert checks(decide_starts(batch, known(capability("cap", 5), by_key=by_key))) == ["idempotency-key-reused"] * 2
