"""Fair windows per (tenant, system)."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st
from tests.orchestrator.cases import NOW

from trueup_common.contracts.task import Beat
from trueup_orchestrator.core.dispatch import Load, Waiting, choose, free
from trueup_orchestrator.windows import Windows

PAIRS = [("acme", "site"), ("acme", "mail"), ("globex", "site")]

waiting = st.lists(
    st.builds(
        lambda number, pair, age: Waiting(f"cmd_{number}", pair, NOW + timedelta(seconds=age)),
        st.integers(0, 10_000),
        st.sampled_from(PAIRS),
        st.integers(0, 100),
    ),
    max_size=40,
    unique_by=lambda item: item.command_id,
)
rooms = st.dictionaries(st.sampled_from(PAIRS), st.integers(-2, 20))


@given(waiting, rooms, st.integers(0, 30))
def test_windows_are_kept_and_no_pair_starves(items: list[Waiting], room: dict, limit: int) -> None:
    """Each pair stays within its room; with room left on both, no pair gets two more than another that waits."""
    chosen = choose(items, room, limit)
    by_id = {item.command_id: item for item in items}
    assert len(chosen) == len(set(chosen)) <= limit
    counts = {pair: sum(by_id[key].pair == pair for key in chosen) for pair in PAIRS}
    for pair in PAIRS:
        assert counts[pair] <= max(room.get(pair, 0), 0)
        mine = sorted((item for item in items if item.pair == pair), key=lambda i: (i.since, i.command_id))
        assert {key for key in chosen if by_id[key].pair == pair} == {i.command_id for i in mine[: counts[pair]]}
        hungry = counts[pair] < min(max(room.get(pair, 0), 0), len(mine))
        if hungry:
            assert len(chosen) == limit
            assert all(counts[other] <= counts[pair] + 1 for other in PAIRS)


def test_who_does_not_hold_the_lock_leaves_the_store_alone_and_takes_half() -> None:
    load = Load(locked=False, in_flight=10, queued=4)
    assert free(load, 20, in_hand=True) == 3
    assert free(load, 20, in_hand=False) == 0
    assert free(Load(locked=True, in_flight=10, queued=4), 20, in_hand=False) == 10
    assert free(Load(locked=True, in_flight=30, queued=0), 20, in_hand=True) == 0


def test_windows_follow_announced_slots_of_live_workers() -> None:
    windows = Windows(256)
    assert windows.size(("acme", "site"), NOW) == 256
    windows.announce(Beat(worker="a", system="site", slots={"acme": 8}, at=NOW))
    windows.announce(Beat(worker="b", system="site", slots={"acme": 4}, at=NOW - timedelta(seconds=60)))
    assert windows.size(("acme", "site"), NOW) == 16
    assert windows.size(("globex", "site"), NOW) == 256
