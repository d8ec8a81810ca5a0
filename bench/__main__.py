"""`python -m bench`: measure the stacks one after the other, print a table, and as last line one JSON object.

The whole run is bounded: by units, by seconds of load, and by a deadline after which no further stack is started.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence

from bench.measure import WARM_UP_UNITS, Measurement, Size, measure
from bench.report import profile_report, table
from bench.stacks import Floor, SagaPlane, Stack, Stub, TrueupPlane, UndoneSagaPlane

RUN_SECONDS_MAX = 215.0
FIXED_SECONDS = {
    "floor": 28.0,
    "trueup": 45.0,
    "trueup_readback": 45.0,
    "trueup_saga": 40.0,
    "trueup_saga_undone": 20.0,
}
"""What a stack takes on a busy machine apart from saturation: start, warm-up, idle, quiet arrivals, stop."""
SATURATION_SECONDS_MIN = 3.0
STACKS = tuple(FIXED_SECONDS)
SAGAS = frozenset({"trueup_saga", "trueup_saga_undone"})
SAGA_SHARE = 5
"""A saga has five steps: a fifth of the units takes as long."""
SAGA_WARM_UP_UNITS = 32


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="CPU, throughput, latency and memory of a command and a saga, next to one INSERT per request.",
        epilog="Example: python -m bench --only floor,trueup --units 1000. Exit codes: 0 ok, 1 failed, 2 usage.",
    )
    parser.add_argument("--units", type=int, default=3000, help="units at saturation (default 3000)")
    parser.add_argument("--seconds", type=float, default=15.0, help="longest saturation phase (default 15)")
    parser.add_argument("--quiet-units", type=int, default=160, help="units at 20 per second (default 160)")
    parser.add_argument("--only", default=",".join(STACKS), help=f"some of {','.join(STACKS)}")
    parser.add_argument("--profile", choices=("samples", "calls"), default="", help="profile the services as well")
    options = parser.parse_args(arguments)
    options.only = [name for name in options.only.split(",") if name]
    for name in options.only:
        if name not in STACKS:
            parser.error(f"--only: {name} is none of {', '.join(STACKS)}")
    if options.units < 1 or options.quiet_units < 1 or options.seconds <= 0:
        parser.error("--units, --quiet-units and --seconds must be positive")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 1 where something could not be measured or an effect was doubled or lost."""
    options = _options(arguments)
    uses = options.units + options.quiet_units + WARM_UP_UNITS
    stub = Stub()
    saga = SagaPlane(stub.url, units_max=uses, profile=options.profile)
    saga.kept = set(options.only) >= SAGAS
    makers: dict[str, Callable[[], Stack]] = {
        "floor": Floor,
        "trueup": lambda: TrueupPlane("trueup", "bench.post", stub.url, units_max=uses, profile=options.profile),
        "trueup_readback": lambda: TrueupPlane(
            "trueup_readback", "bench.post_verified", stub.url, units_max=uses, profile=options.profile
        ),
        "trueup_saga": lambda: saga,
        "trueup_saga_undone": lambda: UndoneSagaPlane(
            stub.url, units_max=uses, profile=options.profile, on=saga if saga.kept else None
        ),
    }
    ends_at = time.monotonic() + RUN_SECONDS_MAX
    measured: list[Measurement] = []
    stub.start()
    try:
        for number, name in enumerate(options.only):
            left = options.only[number:]
            free = ends_at - time.monotonic() - sum(FIXED_SECONDS[stack] for stack in left)
            if time.monotonic() > ends_at:
                measured.append(Measurement(name, problems=["no time was left"]))
                continue
            print(f"measuring {name} …", file=sys.stderr, flush=True)
            seconds = min(options.seconds, max(SATURATION_SECONDS_MIN, free / len(left)))
            share = SAGA_SHARE if name in SAGAS else 1
            size = Size(
                max(1, options.units // share),
                seconds,
                max(1, options.quiet_units // share),
                SAGA_WARM_UP_UNITS if name in SAGAS else WARM_UP_UNITS,
                idle=name != "trueup_saga_undone",
            )
            measured.append(measure(makers[name](), stub, size))
    finally:
        saga.kept = False
        saga.stop()
        stub.stop()
    if options.profile:
        print(profile_report(measured))
    print(table(measured))
    print(json.dumps({seen.name: seen.figures() for seen in measured}))
    return 1 if any(seen.problems for seen in measured) else 0


if __name__ == "__main__":
    sys.exit(main())
