"""The tables of a run: every stack in a column, with its ratio to the floor that was measured beside it.

Requirements: B1, B2, B3, B5
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.measure import Measurement

NAME_WIDTH = 36
COLUMN_WIDTH = 24
PROFILE_LINES = 30
OWN = "trueup"
BARE = "bare"
"""The hops alone: a yardstick that is compared to, not competed with."""
WRAPPER_SHARE = 0.97
"""A function with more of the time than this only wraps the whole program."""
Value = Callable[[Measurement], float | None]

ROWS: tuple[tuple[str, Value, str, bool], ...] = (
    ("CPU seconds per 1,000 units", lambda seen: seen.cpu_s_per_1000, "{:.2f}", True),
    ("units per second, 64 in flight", lambda seen: seen.units_per_s, "{:.0f}", True),
    ("  p50 there, ms", lambda seen: seen.loaded_p50_ms, "{:.1f}", True),
    ("p50 at 20 per second (sagas: 4), ms", lambda seen: seen.p50_ms, "{:.2f}", True),
    ("p99 there, ms", lambda seen: seen.p99_ms, "{:.2f}", True),
    ("p50 until accepted, ms", lambda seen: seen.accept_p50_ms, "{:.2f}", False),
    ("  CPU seconds per 1,000 there", lambda seen: seen.quiet_cpu_s_per_1000, "{:.2f}", True),
    ("cores used when idle", lambda seen: seen.idle_cores, "{:.3f}", False),
    ("memory (PSS), MiB", lambda seen: seen.pss_mb, "{:.0f}", False),
    ("commits per unit at saturation", lambda seen: seen.commits_per_unit, "{:.3f}", False),
    ("transactions per unit, with timers", lambda seen: seen.transactions_per_unit, "{:.3f}", False),
    ("write-ahead log per unit, KiB", lambda seen: seen.log_kb_per_unit, "{:.2f}", False),
    ("units measured at saturation", lambda seen: seen.units, "{:.0f}", False),
    ("effects duplicated", lambda seen: seen.effects_duplicated, "{:.0f}", False),
    ("effects missing", lambda seen: seen.effects_missing, "{:.0f}", False),
    ("cores used by others meanwhile", lambda seen: seen.foreign_cores, "{:.2f}", False),
)


def report(measured: Sequence[Measurement]) -> list[str]:
    """The whole report: commands, sagas, peers against Trueup, targets, what was skipped."""
    present = [seen for seen in measured if not seen.skipped]
    groups = (
        ("One command", [seen for seen in present if "_saga" not in seen.name]),
        ("A saga of five steps, well", [seen for seen in present if seen.name.endswith("_saga")]),
        ("A saga of five steps, undone", [seen for seen in present if seen.name.endswith("_saga_undone")]),
    )
    lines: list[str] = []
    for title, group in groups:
        if group:
            lines += [title, *table(group).splitlines(), ""]
    lines += against_trueup(present)
    lines += of_hops(present)
    lines += targets(present)
    lines += [f"skipped: {seen.name}: {seen.skipped}" for seen in measured if seen.skipped]
    return lines


def table(measured: Sequence[Measurement]) -> str:
    """Every stack in a column, with its ratio to the floor beside it (or, without one, to the floor of the run)."""
    floor = next((seen for seen in measured if seen.name == "floor"), None)
    lines = [_line("", [seen.name for seen in measured])]
    for title, value, form, compared in ROWS:
        cells = []
        for seen in measured:
            beside = seen.beside or (floor if seen is not floor else None)
            cells.append(_cell(value(seen), value(beside) if beside is not None and compared else None, form))
        if any(cell != "-" for cell in cells):
            lines.append(_line(title, cells))
    for title, parts in (
        ("CPU seconds per 1,000 by process", [seen.cpu_by_role for seen in measured]),
        ("memory (PSS) by process, MiB", [seen.pss_by_role for seen in measured]),
    ):
        lines += ["", title]
        roles = sorted({role for part in parts for role in part}, key=lambda role: -max(p.get(role, 0) for p in parts))
        for role in roles:
            lines.append(_line(f"  {role}", [_cell(part.get(role), None, "{:.2f}") for part in parts]))
    for seen in measured:
        lines += [f"PROBLEM {seen.name}: {problem}" for problem in seen.problems]
    return "\n".join([*lines, ""])


def _cpu(seen: Measurement) -> float | None:
    return seen.cpu_s_per_1000


def _p50(seen: Measurement) -> float | None:
    return seen.p50_ms


def against_trueup(measured: Sequence[Measurement]) -> list[str]:
    """How many times Trueup's CPU each peer needs for the same unit, each taken against the floor beside it."""
    by_name = {seen.name: seen for seen in measured}
    peers = [name for name in by_name if "_" not in name and name not in ("floor", BARE, OWN)]
    if OWN not in by_name or not peers:
        return []
    lines = [_line("CPU of a peer, Trueup's is 1", ["command", "saga", "saga undone"])]
    for peer in peers:
        cells = []
        for kind in ("", "_saga", "_saga_undone"):
            theirs, ours = by_name.get(peer + kind), by_name.get(OWN + kind)
            cells.append(_cell(times(theirs, ours), None, "x{:.2f}"))
        lines.append(_line(f"  {peer}", cells))
    return [*lines, ""]


def of_hops(measured: Sequence[Measurement]) -> list[str]:
    """Which part of Trueup's CPU and latency hops alone take, by the ratios to the floor beside each."""
    by_name = {seen.name: seen for seen in measured}
    if OWN not in by_name or BARE not in by_name:
        return []
    lines = [_line("bare hops, Trueup's is 1", ["command", "saga", "saga undone"])]
    for title, value in (("CPU", _cpu), ("p50 at low load", _p50)):
        cells = []
        for kind in ("", "_saga", "_saga_undone"):
            hops, ours = by_name.get(BARE + kind), by_name.get(OWN + kind)
            cells.append(_cell(times(hops, ours, value), None, "x{:.2f}"))
        lines.append(_line(f"  {title}", cells))
    return [*lines, ""]


def times(theirs: Measurement | None, ours: Measurement | None, value: Value = _cpu) -> float | None:
    """A figure of one stack as a multiple of another's: of their ratios to the floor where both have one."""
    if theirs is None or ours is None:
        return None
    for one, other in ((theirs.ratio(value), ours.ratio(value)), (value(theirs), value(ours))):
        if one is not None and other:
            return one / other
    return None


@dataclass(frozen=True)
class Target:
    """A figure, what it has to stay below, and the requirement that says so."""

    row: str
    title: str
    value: float | None
    most: float

    def __str__(self) -> str:
        if self.value is None:
            return f"  {self.row}  {self.title}: not measured"
        met = "met" if self.value <= self.most else "NOT MET"
        return f"  {self.row}  {self.title}: {self.value:.2f} of at most {self.most:g}: {met}"


def targets(measured: Sequence[Measurement]) -> list[str]:
    """The targets that one run can tell."""
    by_name = {seen.name: seen for seen in measured}
    own = by_name.get(OWN)
    if own is None:
        return []
    peers = [name for name in by_name if name != "floor" and not name.startswith((OWN, BARE))]
    found = []
    for peer in peers:
        kind = peer.partition("_")[2]
        factor = times(by_name.get(f"{OWN}_{kind}" if kind else OWN), by_name[peer])
        found.append(Target("B1", f"CPU against {peer}", factor, 1.0))
    found += [
        Target("B1", "CPU of a command against the floor", own.ratio(_cpu), 5.0),
        Target("B2", "commits per command at saturation", own.commits_per_unit, 2.0),
        Target("B3", "p50 of a command against the floor's, idle", own.ratio(_p50), 5.0),
        Target("B3", "p99 of a command against its p50, idle", tail_ratio(own), 3.0),
        Target("B3", "p50 of accepting against the floor's, idle", accept_ratio(own), 3.0),
        Target("B5", "memory of the whole plane, MiB", own.pss_mb, 700.0),
    ]
    return ["Targets", *(str(target) for target in found), ""]


def tail_ratio(seen: Measurement) -> float | None:
    """p99 against p50 at low load."""
    return seen.p99_ms / seen.p50_ms if seen.p99_ms is not None and seen.p50_ms else None


def accept_ratio(seen: Measurement) -> float | None:
    """Acceptance against one committed INSERT, both at low load."""
    floor = seen.beside.p50_ms if seen.beside is not None else None
    return seen.accept_p50_ms / floor if seen.accept_p50_ms is not None and floor else None


def _line(title: str, cells: Sequence[str]) -> str:
    return f"{title:<{NAME_WIDTH}}" + "".join(f"{cell:>{COLUMN_WIDTH}}" for cell in cells)


def _cell(value: float | None, floor: float | None, form: str) -> str:
    if value is None:
        return "-"
    text = form.format(value)
    return f"{text} (x{value / floor:.2f})" if floor else text


def profile_report(measured: Sequence[Measurement]) -> str:
    """The most expensive functions of every profiled service, by own time and with callees, per 1,000 units."""
    lines: list[str] = []
    for seen in measured:
        for service, profile in seen.profiles.items():
            if not profile.units:
                continue
            scale = 1000.0 / profile.units
            rows = profile.lines()
            total = sum(row.own_seconds for row in rows)
            lines += ["", f"{seen.name} {service}: {total * scale:.3f} s per 1,000", "   own   whole   calls/unit"]
            inner = [row for row in rows if row.whole_seconds < WRAPPER_SHARE * total]
            by_whole = sorted(inner, key=lambda row: row.whole_seconds, reverse=True)
            for title, ranked in (
                ("by own time", rows[:PROFILE_LINES]),
                ("with callees", by_whole[: 2 * PROFILE_LINES]),
            ):
                lines.append(f"  {title}")
                for row in ranked:
                    calls = f"{row.calls / profile.units:8.2f}" if row.calls else " " * 8
                    figures = f"{row.own_seconds * scale:6.3f}  {row.whole_seconds * scale:6.3f}  {calls}"
                    lines.append(f"  {figures}  {row.function}")
    return "\n".join(lines)
