"""What processes use, read from /proc: CPU and memory of whole process trees, by role.

A role is one started process with everything below it, so PostgreSQL's sessions count as PostgreSQL.
"""

import os
from collections.abc import Mapping
from pathlib import Path

PROC = Path("/proc")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
ALONE = frozenset({"supervisor"})
"""Roles whose children are listed as roles of their own."""

Roots = Mapping[str, int]


def _statistics() -> dict[int, tuple[int, float, float]]:
    """(parent, own seconds, seconds of children that ended) by process id."""
    found: dict[int, tuple[int, float, float]] = {}
    for entry in PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it ended while we were reading
            continue
        own, ended = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
        found[int(entry.name)] = (int(fields[1]), own / TICKS_PER_SECOND, ended / TICKS_PER_SECOND)
    return found


def _trees(roots: Roots) -> tuple[dict[str, list[int]], dict[int, tuple[int, float, float]]]:
    statistics = _statistics()
    children: dict[int, list[int]] = {}
    for pid, (parent, _, _) in statistics.items():
        children.setdefault(parent, []).append(pid)
    trees: dict[str, list[int]] = {}
    for role, root in roots.items():
        tree, waiting = [], [root]
        while waiting:
            pid = waiting.pop()
            if pid in statistics:
                tree.append(pid)
                waiting += [] if role in ALONE else children.get(pid, [])
        trees[role] = tree
    return trees, statistics


def cpu_seconds(roots: Roots) -> dict[str, float]:
    """utime + stime of each role so far, ended children included."""
    trees, statistics = _trees(roots)
    used: dict[str, float] = {}
    for role, tree in trees.items():
        used[role] = sum(statistics[pid][1] + (0.0 if role in ALONE else statistics[pid][2]) for pid in tree)
    return used


def pss_mb(roots: Roots) -> dict[str, float] | None:
    """Proportional set size of each role in MiB; None where this user may not read it."""
    trees, _ = _trees(roots)
    sizes: dict[str, float] = {}
    for role, tree in trees.items():
        kilobytes = 0
        for pid in tree:
            try:
                lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
            except ProcessLookupError:
                continue
            except OSError:
                return None
            kilobytes += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        sizes[role] = kilobytes / 1024
    return sizes


def machine_busy_seconds() -> float:
    """CPU seconds that the whole machine has been busy."""
    values = [int(value) for value in (PROC / "stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle_and_waiting = values[3] + values[4]
    return (sum(values) - idle_and_waiting) / TICKS_PER_SECOND
