"""The inventory tells the truth: each test that it names exists, and each trap test is named."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.traps.inventory import TRAPS

TESTS = Path(__file__).parents[1]


def names_in(path: Path) -> set[str]:
    """Names of the test functions of a module."""
    return {
        node.name
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }


def test_every_test_that_holds_a_trap_exists() -> None:
    named = {name for trap in TRAPS for name in trap.tests}
    files = {name.partition("::")[0] for name in named}
    there = {f"{file}::{test}" for file in files if (TESTS / file).is_file() for test in names_in(TESTS / file)}
    assert sorted(named - there) == []
    assert all(trap.tests for trap in TRAPS) and len(TRAPS) > 50


def test_every_test_of_this_folder_holds_a_trap() -> None:
    named = {name for trap in TRAPS for name in trap.tests}
    here = {
        f"traps/{path.name}::{test}"
        for path in Path(__file__).parent.glob("test_*.py")
        if path != Path(__file__)
        for test in names_in(path)
    }
    assert sorted(here - named) == []
