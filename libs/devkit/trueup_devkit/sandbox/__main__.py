"""Start the sandbox world: `python -m trueup_devkit.sandbox --state-dir DIR --port CONTROL_PORT`."""

import argparse
import asyncio
import os
import signal
import sys
from pathlib import Path

import uvloop

from trueup_devkit.sandbox.world import Occupied, Sandbox


async def _run(state_dir: Path, port: int, host: str, discovery: list[str], database_url: str | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with Sandbox(state_dir, port, host, discovery=discovery, database_url=database_url) as world:
        print(f"sandbox {world.control_url}", *(f"{name}={url}" for name, url in world.urls.items()), flush=True)
        await stop.wait()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m trueup_devkit.sandbox",
        description="The sandbox world: WordPress and others on loopback, with fault knobs.",
        epilog="example: python -m trueup_devkit.sandbox --state-dir .trueup/sandbox --port 8090",
    )
    parser.add_argument("--state-dir", type=Path, required=True, help="folder of the world's state")
    parser.add_argument("--port", type=int, required=True, help="control port; system n listens on port + n; 0 = any")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument(
        "--discovery", action="append", default=[], help="address of the plane's checks, with {tenant} in it"
    )
    parser.add_argument(
        "--database-url",
        default=os.environ.get("TRUEUP_SANDBOX_DATABASE_URL"),
        help="owner's URL of the customer's database, made where it is missing (TRUEUP_SANDBOX_DATABASE_URL)",
    )
    given = parser.parse_args()
    try:
        uvloop.run(_run(given.state_dir, given.port, given.host, given.discovery, given.database_url))
    except (Occupied, OSError) as failure:
        print(f"sandbox: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
