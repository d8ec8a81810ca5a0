"""Mutants of the linter: documents that are unsafe to run, let through."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

EFFECTS: Final = "libs/common/trueup_common/documents/rules_of_effects.py"
LINES: Final = "tests/documents/test_lint.py::test_each_rule_is_told_at_its_line"

MUTANTS: Final[tuple[Mutant, ...]] = (
    Mutant(
        name="backward-step-beside-the-pivot",
        law="whatever may end backwards is over before the pivot begins",
        rows="S2",
        file=EFFECTS,
        old="if pivot != step.id and step.id not in ground.order.before[pivot]]",
        new="if pivot != step.id and pivot in ground.order.before[step.id]]",
        killers=(LINES, "tests/documents/test_orders.py::test_any_order_is_refused_or_safe"),
    ),
    Mutant(
        name="undo-after-the-pivot-allowed",
        law="nothing after the pivot may ask for compensation",
        rows="S2 S3",
        file=EFFECTS,
        old="if step.id in ground.past_pivot and answer in BACKWARD:",
        new="if step.id not in ground.past_pivot and answer in BACKWARD:",
        killers=(LINES,),
    ),
    Mutant(
        name="two-pivots-without-a-reason",
        law="two pivots need a declared reason",
        rows="S2",
        file=EFFECTS,
        old="            if step.id in ground.pivots[1:]:",
        new="            if step.id in ground.pivots[2:]:",
        killers=(LINES,),
    ),
    Mutant(
        name="compensable-without-compensation",
        law="a compensable step has a compensation",
        rows="S2 S1",
        file=EFFECTS,
        old="if undo is None and declaration.effect_class is EffectClass.COMPENSABLE:",
        new="if undo is None and declaration.effect_class is EffectClass.READ:",
        killers=("tests/documents/test_lint.py::test_a_compensable_step_without_compensation_is_refused",),
    ),
    Mutant(
        name="approval-that-binds-nothing",
        law="the hash that a pivot is given is among what its approval binds",
        rows="S6",
        file=EFFECTS,
        old="if approvals and (wanted is None or wanted not in bound):",
        new="if approvals and wanted is None:",
        killers=(LINES,),
    ),
    Mutant(
        name="guard-bypassed",
        law="no way leads to the pivot past the approval or check that guards it",
        rows="S7 S6",
        file=EFFECTS,
        old="if guard in ground.order.before[pivot] and pivot not in passed:",
        new="if guard in ground.order.before[pivot] and pivot in passed:",
        killers=(LINES,),
    ),
    Mutant(
        name="unfindable-without-a-policy",
        law="what nobody can find again needs a manual policy",
        rows="X8 S2",
        file=EFFECTS,
        old='if declaration.findability.value == "none" and not declaration.manual_policy:',
        new='if declaration.findability.value == "none" and declaration.manual_policy is None and step.on:',
        killers=("tests/documents/test_lint.py::test_an_effect_that_nobody_finds_needs_a_manual_policy",),
    ),
    Mutant(
        name="goto-doubles-an-effect",
        law="going back never causes an effect again",
        rows="S2 I1",
        file=EFFECTS,
        old="!= EffectClass.READ)\n",
        new="== EffectClass.IRREVERSIBLE)\n",
        killers=(LINES,),
    ),
)
