"""The verdict of a benchmark run: a peer that is cheaper, or a slow answer, is told as a target that is not met."""

import pytest
from bench.measure import Measurement
from bench.report import targets


def measured(name: str, cpu: float, p50: float = 3.0, **more: float) -> Measurement:
    seen = Measurement(name)
    seen.cpu_s_per_1000, seen.p50_ms, seen.p99_ms = cpu, p50, 2 * p50
    for field, value in more.items():
        setattr(seen, field, value)
    seen.beside = Measurement("floor")
    seen.beside.cpu_s_per_1000, seen.beside.p50_ms = 1.0, 3.0
    return seen


def lines(*runs: Measurement) -> dict[str, bool]:
    """What each target is about, and whether it was met."""
    told = [line.strip().rpartition(": ") for line in targets(list(runs))[1:-1]]
    return {head.rpartition(":")[0]: verdict == "met" for head, _, verdict in told}


@pytest.mark.parametrize(("theirs", "met"), [(5.1, True), (4.9, False)])
def test_every_peer_is_compared_by_its_own_floor(theirs: float, met: bool) -> None:
    """Cheaper than Trueup is not met, for the command and for each saga by itself."""
    own = [measured("trueup", 5.0), measured("trueup_saga", 5.0), measured("trueup_saga_undone", 5.0)]
    peers = [measured("peer", theirs), measured("peer_saga", 9.0), measured("peer_saga_undone", theirs)]
    told = lines(*own, *peers)
    assert told["B1  CPU against peer"] is told["B1  CPU against peer_saga_undone"] is met
    assert told["B1  CPU against peer_saga"] is True


def test_accepting_and_a_whole_command_have_bounds_of_their_own() -> None:
    """Three times the floor until it is accepted, five times until it is done, and a tail of three."""
    fast = lines(measured("trueup", 4.0, p50=14.9, accept_p50_ms=8.9, pss_mb=600.0, commits_per_unit=0.5))
    assert all(fast.values()), fast
    slow = lines(measured("trueup", 5.1, p50=15.1, accept_p50_ms=9.1, pss_mb=701.0, commits_per_unit=2.1))
    assert not slow["B3  p50 of a command against the floor's, idle"]
    assert not slow["B3  p50 of accepting against the floor's, idle"]
    assert slow["B3  p99 of a command against its p50, idle"]
    assert not slow["B1  CPU of a command against the floor"]
    assert not slow["B2  commits per command at saturation"] and not slow["B5  memory of the whole plane, MiB"]
