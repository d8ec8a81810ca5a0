"""The runner tells a kill from a survivor and from a slip, and never touches the tree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutants.__main__ import hunt, table
from tests.mutants.mutant import ROOT, Mutant
from tests.mutants.table import MUTANTS
from tests.mutants.workshop import Workshop

BREAKER = next(mutant for mutant in MUTANTS if mutant.name == "breaker-never-opens")


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    """A copy of the tree for this module."""
    opened = Workshop(tmp_path_factory.mktemp("workshop") / "run", limit_seconds=120)
    opened.open()
    yield opened
    opened.close(keep=False)
    assert not opened.folder.exists()


def changed(name: str, new: str) -> Mutant:
    return replace(BREAKER, name=name, new=new)


def test_a_broken_law_is_killed_and_the_tree_stays_as_it_is(workshop: Workshop) -> None:
    """The test that is named notices it, by its own assertion; the file in the tree and in the copy is the same."""
    before = (ROOT / BREAKER.file).read_bytes()
    fate = hunt(workshop, BREAKER, every=False)
    assert (fate.verdict, fate.by) == ("killed", BREAKER.killers[0])
    assert (ROOT / BREAKER.file).read_bytes() == (workshop.copy / BREAKER.file).read_bytes() == before
    assert BREAKER.name in table([fate])[-1] and "test_breaker.py" in table([fate])[-1]


def test_what_breaks_nothing_survives(workshop: Workshop) -> None:
    """A change without a consequence is no kill, whatever tests are run on it."""
    fate = hunt(workshop, changed("breaker-the-same", f"{BREAKER.old}  # counted"), every=True)
    assert fate.verdict == "SURVIVED"


@pytest.mark.parametrize(
    ("name", "new"),
    [("breaker-slips", "self._failures_count += one"), ("breaker-unreadable", "self._failures_count =")],
)
def test_a_slip_of_the_hand_is_no_kill(workshop: Workshop, name: str, new: str) -> None:
    """A misspelt name fails every test, and what is no Python cannot even be loaded: neither shows anything."""
    assert hunt(workshop, changed(name, new), every=False).verdict == "broken"


def test_a_module_that_no_killer_loads_is_told(workshop: Workshop) -> None:
    """Tests that never see the mutant cannot speak for it."""
    elsewhere = replace(BREAKER, name="breaker-elsewhere", killers=("tests/common/test_compare.py::test_resources",))
    assert hunt(workshop, elsewhere, every=False).verdict == "broken"
    blind = replace(
        BREAKER,
        name="breaker-unseen",
        killers=("tests/common/test_compare.py::test_an_unknown_normaliser_is_an_error_never_equality",),
    )
    fate = hunt(workshop, blind, every=False)
    assert fate.verdict == "broken" and "unseen" in fate.by


def test_an_entry_that_applies_nowhere_is_told(workshop: Workshop) -> None:
    """The place was rewritten: the entry must be anchored again."""
    fate = hunt(workshop, replace(BREAKER, name="breaker-moved", old=Path(__file__).name), every=False)
    assert fate.verdict == "broken" and "occurs 0 times" in fate.by
