"""The table of a run: every stack in a column, with its ratio to the floor of the same run."""

from collections.abc import Callable, Sequence

from bench.measure import Measurement

NAME_WIDTH = 36
COLUMN_WIDTH = 24
PROFILE_LINES = 30
WRAPPER_SHARE = 0.97
"""A function with more of the time than this only wraps the whole program."""
Value = Callable[[Measurement], float | None]

ROWS: tuple[tuple[str, Value, str, bool], ...] = (
    ("CPU seconds per 1,000 units", lambda seen: seen.cpu_s_per_1000, "{:.2f}", True),
    ("units per second, 64 in flight", lambda seen: seen.units_per_s, "{:.0f}", True),
    ("  p50 there, ms", lambda seen: seen.loaded_p50_ms, "{:.1f}", True),
    ("p50 at 20 per second (sagas: 4), ms", lambda seen: seen.p50_ms, "{:.2f}", True),
    ("p99 there, ms", lambda seen: seen.p99_ms, "{:.2f}", True),
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


def table(measured: Sequence[Measurement]) -> str:
    """The whole report."""
    floor = next((seen for seen in measured if seen.name == "floor"), None)
    lines = [_line("", [seen.name for seen in measured])]
    for title, value, form, compared in ROWS:
        cells = [
            _cell(value(seen), value(floor) if floor and compared and seen is not floor else None, form)
            for seen in measured
        ]
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
