"""The table of mutants does not rot: every entry still applies to the tree, and every killer that it names exists."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from functools import lru_cache
from pathlib import Path

import pytest

from tests.mutants.mutant import ROOT, Mutant, Seeds
from tests.mutants.recorder import kind_of
from tests.mutants.table import MUTANTS
from trueup_common.runtime.ports import StoreBusy

ROWS = re.compile(r"[A-Z]\d{1,2}( [A-Z]\d{1,2})*")
NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)+")


@lru_cache(maxsize=128)
def names_in(path: Path) -> frozenset[str]:
    """The names of the tests of a file; the last of a class's method's own."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, kinds) and node.name.startswith("test_"))


def test_names_are_unique_and_there_are_many() -> None:
    """A survivor is told by its name, so a name means one mutant."""
    names = Counter(mutant.name for mutant in MUTANTS)
    assert len(names) >= 36
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_applies_and_its_killers_exist(mutant: Mutant) -> None:
    """The old text is there once, what comes of it is Python, and somebody is named who must notice."""
    assert NAME.fullmatch(mutant.name) and ROWS.fullmatch(mutant.rows) and mutant.law
    assert mutant.file.startswith(("libs/common/", "services/")), "mutants are of the product, not of its tests"
    assert mutant.old != mutant.new
    compile(mutant.mutated(mutant.source()), mutant.file, "exec")
    assert mutant.killers
    for killer in mutant.killers:
        if isinstance(killer, Seeds):
            assert killer.count > 0
            continue
        path, _, test = killer.partition("::")
        assert (ROOT / path).is_file() and test in names_in(ROOT / path), f"no such test: {killer}"


def test_a_mutant_names_only_what_is_there(tmp_path: Path) -> None:
    """A misspelt name would be noticed by everything, and would prove nothing."""
    for mutant in MUTANTS:
        (tmp_path / f"{mutant.name}.py").write_text(mutant.mutated(mutant.source()), encoding="utf-8")
    ruff = Path(sys.executable).parent / "ruff"
    command = [str(ruff), "check", "--isolated", "--no-cache", "--select", "F821,F823", "--output-format", "concise"]
    run = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-3000:]


def test_a_crash_is_no_kill() -> None:
    """Only a test's own word, or a refusal that the product declares, counts; a failing import does not."""
    assert kind_of(AssertionError()) == kind_of(ExceptionGroup("", [AssertionError()])) == "assertion"
    assert kind_of(StoreBusy()) == "refused"
    assert kind_of(ImportError()) == kind_of(NameError()) == kind_of(ValueError()) == "error"
    try:
        (_,) = ()
    except ValueError as own:
        assert kind_of(own) == "assertion"
    try:
        json.loads("x")
    except ValueError as foreign:
        assert kind_of(foreign) == "error"
    assert kind_of(ExceptionGroup("", [AssertionError(), NameError()])) == "error"
