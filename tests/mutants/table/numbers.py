"""Mutants of numbers: what is counted when, what an alert needs, which breach and which anomaly is told."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

GATEWAY: Final = "services/gateway/trueup_gateway"
ORCHESTRATOR: Final = "services/orchestrator/trueup_orchestrator"
MEASURES: Final = "tests/gateway/test_measures.py"
NUMBERS: Final = "tests/gateway/test_numbers.py"
INVARIANTS: Final = "tests/orchestrator/test_invariants.py"
SPENDING: Final = "tests/orchestrator/test_spending.py"
ANOMALIES: Final = "tests/gateway/test_anomalies.py"

MUTANTS: Final = (
    Mutant(
        name="late-operations-count-when-they-end",
        law="an operation is late at the moment its time is up",
        rows="V3",
        file=f"{GATEWAY}/core/measures.py",
        old='            tally.add(late_at, "operations_due", group.count)',
        new='            tally.add(ended or late_at, "operations_due", group.count)',
        killers=(f"{MEASURES}::test_an_operation_is_late_at_the_moment_its_time_is_up",),
    ),
    Mutant(
        name="cost-of-bad-ends-forgotten",
        law="a correct case bears what the others cost as well",
        rows="V4",
        file=f"{GATEWAY}/core/measures.py",
        old="        for name, value in group.spent.items():",
        new="        for name, value in group.spent.items() if group.status == InstanceStatus.CLOSED else ():",
        killers=(f"{NUMBERS}::test_what_all_cases_spent_is_told_per_correct_one",),
    ),
    Mutant(
        name="a-hold-that-never-ends",
        law="the time a person held a case ends with the hold",
        rows="V4",
        file=f"{ORCHESTRATOR}/core/spending.py",
        old="held, now = fold.instance.status is InstanceStatus.HUMAN_TAKEOVER, fold.moment.business",
        new="held, now = fold.instance.closed_at is None, fold.moment.business",
        killers=(f"{SPENDING}::test_a_persons_hold_counts_from_takeover_to_hand_back",),
    ),
    Mutant(
        name="look-ups-counted-as-work",
        law="only what was sent took a worker's time",
        rows="V4",
        file="libs/common/trueup_common/contracts/spending.py",
        old='            if attempt.get("sent"):',
        new='            if attempt["started_at"]:',
        killers=(f"{SPENDING}::test_attempts_and_the_time_of_workers_are_summed_over_all_of_them",),
    ),
    Mutant(
        name="risk-not-told",
        law="the level of high-risk cases counts real cases",
        rows="V3",
        file=f"{ORCHESTRATOR}/core/telling.py",
        old='told["mandate"] = {"risk": instance.mandate.get("risk")}',
        new='told["mandate"] = {}',
        killers=(f"{SPENDING}::test_of_what_a_case_may_do_only_its_risk_is_told",),
    ),
    Mutant(
        name="convergence-forgets-the-overdue",
        law="convergence counts over everything that was due, not over what ended",
        rows="V2",
        file=f"{GATEWAY}/core/measures.py",
        old="        if group.status != InstanceStatus.CANCELLED:",
        new="        if group.status in KNOWN_OUTCOME and group.status != InstanceStatus.CANCELLED:",
        killers=(f"{MEASURES}::test_convergence_counts_closed_of_all_that_were_due",),
    ),
    Mutant(
        name="counted-on-top",
        law="a cohort that is counted again replaces what it was counted as before",
        rows="V2",
        file=f"{GATEWAY}/counting.py",
        old="old = before[key].parts if key in before else {}",
        new="old = {}",
        killers=(f"{NUMBERS}::test_a_case_is_counted_as_it_stands_at_last",),
    ),
    Mutant(
        name="two-replicas-count",
        law="one replica counts at a time",
        rows="V2 D5",
        file=f"{GATEWAY}/counting.py",
        old="        if not await tx.may_count():",
        new="        if not await tx.may_count() and not self:",
        killers=(f"{NUMBERS}::test_one_replica_counts_at_a_time",),
    ),
    Mutant(
        name="one-window-alerts",
        law="an alert needs a long window and a short one",
        rows="V3",
        file=f"{GATEWAY}/core/slo.py",
        old="if burns[rule.long_seconds].rate > rule.rate and burns[rule.short_seconds].rate > rule.rate",
        new="if burns[rule.short_seconds].rate > rule.rate",
        killers=(f"{MEASURES}::test_an_alert_needs_both_windows",),
    ),
    Mutant(
        name="full-target-never-burns",
        law="one miss of a promise without exceptions is over every threshold",
        rows="V3",
        file=f"{GATEWAY}/core/slo.py",
        old="ALLOWANCE_MIN: Final = 1e-6",
        new="ALLOWANCE_MIN: Final = 1.0",
        killers=(f"{MEASURES}::test_a_target_of_everything_is_whole_or_gone",),
    ),
    Mutant(
        name="breach-without-patience",
        law="a breach is what stands unchanged for a time",
        rows="V5",
        file=f"{ORCHESTRATOR}/core/invariants.py",
        old="if (real - first).total_seconds() >= PATIENCE_SECONDS:",
        new="if real >= first:",
        killers=(
            f"{INVARIANTS}::test_only_what_stood_without_a_break_is_told",
            f"{INVARIANTS}::test_a_breach_that_moves_on_is_another",
        ),
    ),
    Mutant(
        name="expired-leases-unseen",
        law="an expired lease that nobody took up is an exception",
        rows="V5",
        file=f"{ORCHESTRATOR}/check_store.py",
        old='f"WHERE o.lease_expires_at <= {_REAL} AND o.lease_expires_at IS NOT NULL"',
        new='f"WHERE o.lease_expires_at <= {_REAL} AND o.lease_expires_at IS NULL"',
        killers=(f"{INVARIANTS}::test_a_breach_is_told_once_and_so_is_its_end",),
    ),
    Mutant(
        name="anomaly-told-with-every-look",
        law="what goes on is told once per quiet time",
        rows="V6",
        file=f"{GATEWAY}/core/anomalies.py",
        old="if last is None or over or last.told_at + quiet <= now:",
        new="if last is None or over or last.told_at <= now:",
        killers=(f"{ANOMALIES}::test_told_when_over_the_threshold_and_not_within_the_quiet_time",),
    ),
    Mutant(
        name="anomaly-that-flaps",
        law="a figure is well again only after it was well for long",
        rows="V6",
        file=f"{GATEWAY}/core/anomalies.py",
        old="elif row.calm_since + timedelta(seconds=rules.calm_seconds) <= now:",
        new="else:",
        killers=(f"{ANOMALIES}::test_a_figure_ends_once_it_was_well_for_long_and_never_flaps",),
    ),
    Mutant(
        name="anothers-case-unnoticed",
        law="events for another tenant's cases are noted",
        rows="V6",
        file=f"{GATEWAY}/signalling.py",
        old="if owner is not None and owner[0] != request.sender.tenant:",
        new="if owner is not None and owner[0] == request.sender.tenant:",
        killers=(f"{ANOMALIES}::test_events_for_anothers_case_are_told_to_the_callers_tenant",),
    ),
    Mutant(
        name="used-nonce-unnoticed",
        law="a nonce that was used up and comes again is noted",
        rows="V6",
        file=f"{GATEWAY}/core/approval.py",
        old="return row.nonce != answer.nonce if row.status == PENDING else row.status in VERBS.values()",
        new="return row.nonce != answer.nonce",
        killers=(f"{ANOMALIES}::test_a_nonce_that_comes_again_is_told",),
    ),
)
