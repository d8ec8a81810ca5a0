"""A profile by what code is for, instead of by function: where the CPU of a unit goes in each service.

Own time of a function counts for its area; a call into a compiled module counts for who calls it, and so does the
kernel's work for a socket.
"""

from collections.abc import Sequence

from bench.measure import Measurement
from bench.profile import Profile

AREAS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("HTTP in", ("uvicorn/", "starlette/", "fastapi/", "_gateway/api/", "/patience.py", "/health.py")),
    ("HTTP out", ("aiohttp/", "yarl/", "multidict/", "/systems/")),
    ("tokens and policy", ("cedarpy/", "joserfc/", "authlib/", "/grants.py", "hmac.py", "/policy.py", "/rules.py")),
    ("decisions", ("/core/", "/documents/", "/contracts/history.py")),
    ("bus", ("nats/", "/bus.py", "/lean_client.py", "/envelope.py", "/gathering.py", "/mail.py")),
    ("database", ("asyncpg/", "sqlalchemy/", "/db.py", "/rows.py", "/store.py", "/store/")),
    ("models and JSON", ("pydantic", "/shape.py", "/canonical.py", "/ids.py", "json/", "<string>", "dataclasses.py")),
    ("event loop", ("asyncio/", "uvloop/", "contextlib.py", "_weakrefset.py", "/host.py", "/service.py", "/timers.py")),
    ("handlers", ("trueup_",)),
)
"""The first that a function's place contains, in this order; what none contains is `other`."""
OTHER = "other"
NAME_WIDTH = 20
COLUMN_WIDTH = 16


def area_of(function: str) -> str:
    """What a function is for, by the file that it stands in."""
    place = "/" + function.partition(":")[0]
    return next((area for area, marks in AREAS if any(mark in place for mark in marks)), OTHER)


def shares(profile: Profile) -> dict[str, float]:
    """Own CPU seconds by area; all areas are there."""
    found = dict.fromkeys([*(name for name, _ in AREAS), OTHER], 0.0)
    for line in profile.lines():
        found[area_of(line.function)] += line.own_seconds
    return found


def area_report(measured: Sequence[Measurement]) -> list[str]:
    """For each profiled stack: CPU ms per unit by area and service."""
    lines: list[str] = []
    for seen in measured:
        profiles = {service: profile for service, profile in seen.profiles.items() if profile.units}
        if not profiles:
            continue
        parts = {service: shares(profile) for service, profile in profiles.items()}
        lines += [f"{seen.name}: CPU ms per unit, by what the code is for", _line("", [*profiles, "all"])]
        for area in next(iter(parts.values())):
            each = [1000 * parts[service][area] / profiles[service].units for service in profiles]
            lines.append(_line(f"  {area}", [f"{value:.3f}" for value in (*each, sum(each))]))
        whole = [1000 * sum(parts[service].values()) / profiles[service].units for service in profiles]
        lines += [_line("  all", [f"{value:.3f}" for value in (*whole, sum(whole))]), ""]
    return lines


def _line(title: str, cells: Sequence[str]) -> str:
    return f"{title:<{NAME_WIDTH}}" + "".join(f"{cell:>{COLUMN_WIDTH}}" for cell in cells)
