"""A pytest plugin: which tests failed, and of what kind the failure was. A failing import is no kill."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import pytest
from _pytest.outcomes import Failed

ASSERTIONS: Final = (AssertionError, Failed, TimeoutError)
"""A test that waits for a state waits for a bounded time; when it runs out, the state never came."""

SLIPS: Final = (ImportError, SyntaxError, NameError)
_PRODUCT: Final = ("trueup_", "asyncpg")
_TESTS: Final = Path(__file__).resolve().parents[1]

_failed: list[dict[str, str]] = []


def kind_of(error: BaseException) -> str:
    """`assertion`: a test's own word. `refused`: what the product declares or its database says. Else `error`.

    A test that takes apart what it expects (`(job,) = jobs`) speaks as well: what it raises itself is its own word.
    """
    if isinstance(error, BaseExceptionGroup):
        kinds = {kind_of(inner) for inner in error.exceptions}
        return next(iter(kinds)) if len(kinds) == 1 else "error"
    if isinstance(error, ASSERTIONS) or (_raised_by_a_test(error) and not isinstance(error, SLIPS)):
        return "assertion"
    return "refused" if type(error).__module__.startswith(_PRODUCT) else "error"


def _raised_by_a_test(error: BaseException) -> bool:
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and Path(frames[-1].f_code.co_filename).is_relative_to(_TESTS)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Generator[None, Any, Any]:
    """Keep what kind of failure it was while the exception is at hand."""
    report = yield
    if report.failed and call.excinfo is not None:
        kind = kind_of(call.excinfo.value) if report.when == "call" else "error"
        says = f"{call.excinfo.typename}: {call.excinfo.value}".splitlines()[0][:200]
        _failed.append({"test": item.nodeid, "kind": kind, "says": says})
    return report


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A module that cannot be imported."""
    if report.failed:
        lines = str(report.longrepr).strip().splitlines() or ["?"]
        _failed.append({"test": report.nodeid, "kind": "error", "says": lines[-1][:200]})


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Leave the report."""
    path = os.environ.get("TRUEUP_MUTANT_REPORT")
    if path:
        module = sys.modules.get(os.environ.get("TRUEUP_MUTANT_MODULE", ""))
        report = {"failed": _failed, "loaded": getattr(module, "__file__", None)}
        Path(path).write_text(json.dumps(report), encoding="utf-8")
