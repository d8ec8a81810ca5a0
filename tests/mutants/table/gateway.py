"""Mutants of acceptance, tokens, grants and governance: what may come in, and what may go out."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

CORE: Final = "services/gateway/trueup_gateway/core"
STORE: Final = "services/gateway/trueup_gateway/store"
RULES: Final = "tests/gateway/test_acceptance_rules.py"
STARTS: Final = "tests/gateway/test_start_rules.py"
START_BATCHES: Final = "tests/gateway/test_start_batches.py"
GRANTS: Final = "tests/gateway/test_workflow_grants.py"
BOUNDS: Final = "tests/gateway/test_minting.py::test_each_bound_refuses_alone"
FLAWS: Final = "tests/gateway/test_minting.py::test_each_flaw_of_an_approval_refuses_alone"

ACCEPTANCE: Final = (
    Mutant(
        name="replay-with-another-payload",
        law="the same key with another fingerprint is refused",
        rows="I2",
        file=f"{CORE}/acceptance.py",
        old="if edge.fingerprint != submission.fingerprint:",
        new="if edge.tenant != submission.tenant:",
        killers=(
            f"{RULES}::test_a_key_stands_for_one_request",
            "tests/gateway/test_acceptance.py::test_a_key_with_another_payload_is_422",
        ),
    ),
    Mutant(
        name="replay-skips-the-checks",
        law="every other check applies to repetitions, too",
        rows="G4 G6",
        file=f"{CORE}/acceptance.py",
        old="        _authority(submission, standing, known)",
        new=(
            "        if (submission.tenant, submission.key) not in by_key:\n"
            "            _authority(submission, standing, known)"
        ),
        killers=(f"{RULES}::test_a_replay_skips_no_check_but_the_uses",),
    ),
    Mutant(
        name="uses-counted-per-batch",
        law="of many requests on one capability exactly as many as it has uses left are accepted",
        rows="G3",
        file=f"{CORE}/acceptance.py",
        old="if uses.get(submission.capability_id, 0) >= standing.uses_left:",
        new="if standing.uses_left <= 0:",
        killers=(f"{RULES}::test_keys_identities_and_uses_hold_in_any_batch",),
    ),
    Mutant(
        name="uses-not-decremented",
        law="each acceptance takes one use, in its own transaction",
        rows="G3",
        file=f"{STORE}/acceptance.py",
        old="SET uses_left = c.uses_left - u.uses",
        new="SET uses_left = c.uses_left",
        killers=("tests/gateway/test_acceptance.py::test_exactly_as_many_as_uses_are_accepted",),
    ),
    Mutant(
        name="accepted-on-what-was-read-once",
        law="revocation of a capability ends acceptance, also between reading and writing",
        rows="G3",
        file=f"{STORE}/acceptance.py",
        old=" AND c.revoked_at IS NULL",
        new="",
        killers=(
            "tests/gateway/test_acceptance.py::test_what_was_read_of_a_capability_is_checked_where_its_use_is_counted",
        ),
    ),
    Mutant(
        name="second-key-for-a-taken-identity",
        law="a random key per attempt cannot double an effect",
        rows="I2",
        file=f"{CORE}/acceptance.py",
        old="                by_identity[submission.tenant, submission.identity] = edge",
        new="                pass",
        killers=(f"{RULES}::test_keys_identities_and_uses_hold_in_any_batch",),
    ),
    Mutant(
        name="identity-freed-by-success",
        law="an identity is free only when nothing of its operation stands in the world",
        rows="I2",
        file=f"{CORE}/acceptance.py",
        old="    OperationState.RESOLVED,\n}",
        new="    OperationState.RESOLVED,\n    OperationState.SUCCESS,\n}",
        killers=(f"{RULES}::test_only_what_left_nothing_in_the_world_lets_go",),
    ),
    Mutant(
        name="another-tenants-capability",
        law="a capability of one tenant lets nothing in for another",
        rows="T1 G4",
        file=f"{CORE}/acceptance.py",
        old="if standing is None or standing.tenant != submission.tenant:",
        new="if standing is None:",
        killers=(f"{RULES}::test_a_replay_skips_no_check_but_the_uses",),
    ),
    Mutant(
        name="revoked-capability-accepted",
        law="a revoked capability lets nothing happen",
        rows="G4 G6",
        file=f"{CORE}/acceptance.py",
        old="    if standing.revoked:\n",
        new="    if standing.revoked and standing.expires_at <= now:\n",
        killers=(f"{RULES}::test_a_replay_skips_no_check_but_the_uses",),
    ),
    Mutant(
        name="expired-decision-accepted",
        law="nothing is accepted on an expired decision",
        rows="G3 G4",
        file=f"{CORE}/capability.py",
        old="    if decision.expires_at <= now:\n",
        new='    if decision.expires_at <= now and decision.outcome != "approved":\n',
        killers=(f"{RULES}::test_a_replay_skips_no_check_but_the_uses",),
    ),
    Mutant(
        name="pattern-covers-its-neighbours",
        law="x/* covers x and what is below it, not what only begins alike",
        rows="G3",
        file=f"{CORE}/capability.py",
        old='resource == stem or resource.startswith(f"{stem}/")',
        new="resource.startswith(stem)",
        killers=("tests/gateway/test_capability_rules.py::test_what_a_pattern_covers",),
    ),
    Mutant(
        name="capability-as-access-token",
        law="a token of one kind is none of another",
        rows="G4",
        file="services/gateway/trueup_gateway/tokens.py",
        old='if header["typ"] != token_type:',
        new='if not header["typ"]:',
        killers=("tests/gateway/test_tokens.py::test_a_token_that_is_almost_right_is_refused",),
    ),
    Mutant(
        name="remembered-token-never-expires",
        law="a verified token is remembered, and its expiry is still asked for each time",
        rows="G4",
        file="services/gateway/trueup_gateway/tokens.py",
        old="    if seconds >= expires_at:",
        new="    if seconds >= expires_at + 3600:",
        killers=("tests/gateway/test_tokens.py::test_a_right_token_tells_who_calls_until_it_expires",),
    ),
)

STARTING: Final = (
    Mutant(
        name="start-uses-counted-per-batch",
        law="of many starts on one capability exactly as many as it has uses left are accepted",
        rows="G3",
        file=f"{CORE}/starts.py",
        old="check_uses(standing, uses.get(request.capability_id, 0))",
        new="check_uses(standing, 0)",
        killers=(f"{STARTS}::test_keys_and_uses_hold_in_any_batch",),
    ),
    Mutant(
        name="start-uses-not-decremented",
        law="each start takes one use, in its own transaction",
        rows="G3",
        file=f"{STORE}/workflows.py",
        old="            using([new.capability_id for new in starts]),\n",
        new="",
        killers=(f"{START_BATCHES}::test_starts_that_wait_together_share_a_transaction",),
    ),
    Mutant(
        name="one-key-twice-in-a-batch-of-starts",
        law="a key starts one case, whoever waits together",
        rows="I2 L2",
        file=f"{CORE}/starts.py",
        old="            by_key[request.tenant, request.key] = _made(request, verdict)\n",
        new="",
        killers=(
            f"{STARTS}::test_keys_and_uses_hold_in_any_batch",
            f"{START_BATCHES}::test_a_batch_answers_each_for_itself",
        ),
    ),
    Mutant(
        name="key-taken-over-twice",
        law="a revision takes over the key only of the case that it revises",
        rows="L2 I2",
        file=f"{STORE}/workflows.py",
        old="WHERE e.tenant = q.tenant AND e.key = q.key AND e.workflow_id = q.revises",
        new="WHERE e.tenant = q.tenant AND e.key = q.key",
        killers=(f"{START_BATCHES}::test_a_key_is_taken_over_once",),
    ),
    Mutant(
        name="neighbours-share-a-failure",
        law="a batch that cannot be committed runs again one by one",
        rows="M3",
        file="services/gateway/trueup_gateway/batching.py",
        old="            return await self._apart(batch, None)\n",
        new="            _answer(batch, [_unavailable()] * len(batch))\n            return []\n",
        killers=(
            f"{START_BATCHES}::test_one_broken_start_does_not_take_its_neighbours",
            "tests/gateway/test_acceptance.py::test_one_broken_request_does_not_take_its_neighbours",
        ),
    ),
    Mutant(
        name="start-beside-a-retirement",
        law="a start sees the retirement of its version, or is seen by it",
        rows="L3",
        file="services/gateway/trueup_gateway/starting.py",
        old="            await tx.hold_definitions(names)\n",
        new="",
        killers=(f"{START_BATCHES}::test_who_retires_holds_back_only_that_workflow",),
    ),
)

MINTING: Final = (
    Mutant(
        name="grant-after-revocation",
        law="no grant is minted under a revoked mandate, decision or capability",
        rows="G5 G6",
        file=f"{CORE}/grants.py",
        old="if mandate.revoked_at is not None or decision.revoked_at is not None or facts.capability_revoked:",
        new="if mandate.revoked_at is not None and facts.capability_revoked:",
        killers=(BOUNDS,),
    ),
    Mutant(
        name="grant-after-the-mandates-end",
        law="the mandate ends with its lifetime",
        rows="G5",
        file=f"{CORE}/grants.py",
        old="    if mandate.expires_at <= now:\n",
        new="    if mandate.expires_at < mandate.created_at:\n",
        killers=(BOUNDS,),
    ),
    Mutant(
        name="grant-for-another-payload",
        law="a bound payload hash holds at every effect",
        rows="G5 I4",
        file=f"{CORE}/grants.py",
        old="if mandate.payload_sha256 is not None and mandate.payload_sha256 != operation.payload_sha256:",
        new="if mandate.payload_sha256 is not None and not operation.payload_sha256:",
        killers=(BOUNDS,),
    ),
    Mutant(
        name="grant-of-another-tenants-mandate",
        law="a mandate covers its own tenant's case only",
        rows="T1 G5",
        file=f"{CORE}/grants.py",
        old="mandate.tenant != operation.tenant or mandate.workflow_id != operation.workflow_id:",
        new="mandate.workflow_id != operation.workflow_id:",
        killers=(BOUNDS,),
    ),
    Mutant(
        name="effects-not-counted",
        law="a mandate allows a number of effects, counted at each grant",
        rows="G5 L3",
        file=f"{CORE}/grants.py",
        old="        and request.task.operation.command_id not in facts.effects\n",
        new="        and request.task.operation.command_id in facts.effects\n",
        killers=(f"{GRANTS}::test_effects_are_counted_once_each",),
    ),
    Mutant(
        name="pending-approval-is-enough",
        law="a pivot needs an approval that was given",
        rows="S6 G5",
        file=f"{CORE}/grants.py",
        old='    if row.status != "approved":',
        new='    if row.status == "rejected":',
        killers=(FLAWS,),
    ),
    Mutant(
        name="approval-for-other-content",
        law="an approval is for exactly this content",
        rows="S6 G5",
        file=f"{CORE}/grants.py",
        old="if sent is not None and hashes and sent not in hashes:",
        new="if sent is not None and not hashes and sent not in hashes:",
        killers=(FLAWS,),
    ),
    Mutant(
        name="undone-by-anything",
        law="a compensation is the declared one",
        rows="S4 S1",
        file=f"{CORE}/grants.py",
        old="if facts.undoes.compensation.command_type != operation.command_type:",
        new="if not facts.undoes.compensation.command_type:",
        killers=("tests/gateway/test_minting.py::test_a_compensation_is_the_declared_one_and_outlives_the_authority",),
    ),
    Mutant(
        name="freeze-ignored-when-minting",
        law="a freeze holds back every grant in its scope",
        rows="G6 D2",
        file=f"{CORE}/grants.py",
        old="    if facts.freeze is not None:\n",
        new="    if facts.freeze is not None and request.compensation:\n",
        killers=(BOUNDS,),
    ),
    Mutant(
        name="policy-error-as-allow",
        law="any diagnostics error is a deny",
        rows="G2 G5",
        file=f"{CORE}/grants.py",
        old="return answer.allowed and not answer.errors",
        new="return answer.allowed",
        killers=(f"{GRANTS}::test_an_answer_with_errors_permits_nothing",),
    ),
    Mutant(
        name="freeze-of-one-holds-all",
        law="a freeze holds back its scope and nothing else",
        rows="G6 T1",
        file="libs/common/trueup_common/contracts/governance.py",
        old="return all(value is None or fields.get(name) == value for",
        new="return any(value is None or fields.get(name) == value for",
        killers=("tests/common/test_compare.py::test_a_freeze_covers_what_agrees_with_every_field_it_names",),
    ),
)

MUTANTS: Final[tuple[Mutant, ...]] = (*ACCEPTANCE, *STARTING, *MINTING)
