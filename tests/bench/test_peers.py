"""The comparison with other engines: the same units, the same client, and a run that goes on where one is missing."""

import json
from pathlib import Path

import pytest
import yaml
from bench import __main__ as bench_main
from bench.crash_window import Seen
from bench.measure import Measurement
from bench.peers import install as installing
from bench.peers.effect import STEPS, making, unmaking
from bench.peers.install import RECIPES, Recipe, Skipped, install, pins_of, reason_of
from bench.report import against_trueup, report, tail_ratio, targets, times
from bench.stacks import SAGA_STEPS, saga_faults
from bench.stub import Effects

from trueup_adapters.systems.bench import MAKE, UNMAKE

ROOT = Path(__file__).resolve().parents[2]


def test_a_peer_that_cannot_be_installed_is_skipped_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run goes on, says which one and why, and leaves it out of the last line."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setitem(RECIPES, "dbos", Recipe("dbos", ("no-such-engine==1.0",), ()))
    monkeypatch.setattr(installing.install, "__defaults__", (tmp_path / "peers",))
    assert bench_main.main(["--only", "dbos,dbos_saga"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert json.loads(lines[-1]) == {}
    skipped = [line for line in lines if line.startswith("skipped: ")]
    assert [line.split(": ")[1] for line in skipped] == ["dbos", "dbos_saga"]
    assert all("no-such-engine" in line for line in skipped)
    assert not (tmp_path / "peers" / "dbos" / "installed").exists()


def test_an_installed_peer_is_installed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same form is not installed again; another version is, from nothing."""
    ran: list[str] = []
    monkeypatch.setattr(installing, "_run", lambda arguments, folder: ran.append(arguments[-1]))
    recipe = Recipe("engine", ("engine==1.0",), ("aiohttp",))
    installed = install(recipe, tmp_path)
    assert install(recipe, tmp_path) == installed
    assert len(ran) == 2
    (installed.folder / "of-version-1").touch()
    install(Recipe("engine", ("engine==1.1",), ("aiohttp",)), tmp_path)
    assert len(ran) == 4
    assert not (installed.folder / "of-version-1").exists()
    with pytest.raises(Skipped, match="no program"):
        installed.node_program("server-*/bin/server")


def test_what_peers_install_is_pinned_and_shared() -> None:
    """Every package has a version, and client, server and loop have the version that Trueup has."""
    constraints = (ROOT / "constraints.txt").read_text()
    for recipe in RECIPES.values():
        requirements = recipe.requirements(constraints)
        assert all("==" in requirement for requirement in requirements)
        assert pins_of(constraints)["aiohttp"] in requirements
        assert all(package.rpartition("@")[2][0].isdigit() for package in recipe.node_packages)


def test_a_reason_names_no_address() -> None:
    """Addresses of a registry belong to the machine, not to a report."""
    output = (
        "Looking in https://packages.example/simple\nERROR: nothing at https://packages.example/simple/x\nnotice: y"
    )
    assert reason_of(output) == "ERROR: nothing at (address)"
    assert reason_of("") == "no output"


@pytest.mark.parametrize("undone", [False, True])
def test_a_peer_causes_the_same_effects_as_the_saga_of_trueup(undone: bool) -> None:
    """As many requests, with what the bench adapter sends: the ground truth judges both by one rule."""
    document = yaml.safe_load((ROOT / "bench" / "saga.yaml").read_text())
    assert len(document["steps"]) == STEPS == SAGA_STEPS
    effects = Effects()
    for number in range(1, STEPS + 1):
        made = making("u", number, undone)
        step = document["steps"][number - 1]["with"]
        assert set(made) - {"key"} == set(step) <= set(MAKE.payload_schema["properties"])
        if made.get("refuse"):
            effects.refused += 1
            break
        effects.place(made["key"], made["unit"], made["step"], None)
        effects.apply(made["key"])
    for number in range(STEPS - 1, 0, -1) if undone else ():
        taken = unmaking("u", number)
        assert set(taken) - {"key"} == set(UNMAKE.payload_schema["properties"])
        effects.place(taken["key"], taken["unit"], taken["step"], taken["undoes"])
        effects.apply(taken["key"])
    faults = saga_faults(effects.totals(), 1, undone=undone)
    assert (faults.duplicated, faults.missing, faults.otherwise) == (0, 0, "")


def _stack(name: str, cpu: float, floor_cpu: float, **figures: float) -> Measurement:
    beside = Measurement("floor", cpu_s_per_1000=floor_cpu, p50_ms=2.0)
    return Measurement(name, cpu_s_per_1000=cpu, beside=beside, **figures)  # type: ignore[arg-type]


def test_ratios_are_those_of_the_floor_beside() -> None:
    """A machine that was slower while one stack ran is no merit of the other."""
    own, peer = _stack("trueup", 3.0, 1.0), _stack("dbos", 12.0, 2.0)
    assert times(peer, own) == pytest.approx(2.0)
    assert times(peer, Measurement("trueup", cpu_s_per_1000=3.0)) == pytest.approx(4.0)
    assert times(peer, None) is None
    lines = against_trueup([own, peer, _stack("dbos_saga", 40.0, 1.0), _stack("trueup_saga", 10.0, 1.0)])
    assert lines[1].split() == ["dbos", "x2.00", "x4.00", "-"]


def test_targets_are_told_by_their_rows() -> None:
    """Met, not met, or not measured; nothing is met that was not measured."""
    own = _stack("trueup", 6.0, 1.0, p50_ms=8.0, p99_ms=16.0, accept_p50_ms=4.0, pss_mb=650.0)
    assert tail_ratio(own) == 2.0
    told = [str(line) for line in targets([own, _stack("dbos", 5.0, 1.0), _stack("dbos_saga", 5.0, 1.0)])]
    verdicts = {line.split(":")[0].split("  ")[-1]: line.rpartition(": ")[2] for line in told if ":" in line}
    assert verdicts == {
        "CPU against dbos": "NOT MET",
        "CPU against dbos_saga": "not measured",
        "CPU of a command against the floor": "NOT MET",
        "commits per command at saturation": "not measured",
        "p50 of a command against the floor's, idle": "met",
        "p99 of a command against its p50, idle": "met",
        "p50 of accepting against the floor's, idle": "met",
        "memory of the whole plane, MiB": "met",
    }


def test_a_report_has_a_table_for_every_kind_of_unit() -> None:
    """What was skipped stands in no table, and is named."""
    measured = [
        _stack("trueup", 3.0, 1.0),
        _stack("trueup_saga", 9.0, 1.0),
        _stack("restate_saga_undone", 13.0, 1.0),
        Measurement("temporal", skipped="npm is not there"),
    ]
    text = "\n".join(report(measured))
    for title in ("One command", "A saga of five steps, well", "A saga of five steps, undone"):
        assert title in text
    assert "3.00 (x3.00)" in text
    assert "skipped: temporal: npm is not there" in text.splitlines()
    assert text.count("temporal") == 1


def test_a_crash_is_told_in_a_row() -> None:
    """POSTs, look-ups and what the client was told; a peer that is not there is named."""
    assert Seen("trueup", 1, 2, "SUCCESS", 3.25).line().split() == ["trueup", "1", "2", "SUCCESS", "3.2"]
    assert Seen("dbos", skipped="why").line() == "skipped: dbos: why"


def test_the_floor_after_a_stack_counts_as_much_as_the_one_before() -> None:
    """A machine that got slower while a stack ran is no merit and no fault of it; what one of both lacks stays."""
    seen = _stack("trueup", 3.0, 0.5)
    seen.follow(Measurement("floor", cpu_s_per_1000=1.0, p50_ms=4.0))
    assert seen.ratio(lambda one: one.cpu_s_per_1000) == pytest.approx(4.0)
    assert seen.beside is not None and seen.beside.p50_ms == pytest.approx(3.0)
    seen.follow(Measurement("floor"))
    assert seen.beside.cpu_s_per_1000 == pytest.approx(0.75)
    alone = Measurement("floor", cpu_s_per_1000=1.0)
    alone.follow(Measurement("floor", cpu_s_per_1000=9.0))
    assert alone.beside is None and alone.cpu_s_per_1000 == 1.0
