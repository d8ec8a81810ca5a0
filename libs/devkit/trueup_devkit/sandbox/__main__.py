"""Start the sandbox world: `python -m trueup_devkit.sandbox --state-dir DIR --port CONTROL_PORT`."""

import argparse
import asyncio
import signal
import sys
from pathlib import Path

import uvloop

from trueup_devkit.sandbox.world import Occupied, Sandbox


async def _run(state_dir: Path, port: int, host: str) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with Sandbox(state_dir, port, host) as world:
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
    given = parser.parse_args()
    try:
        uvloop.run(_run(given.state_dir, given.port, given.host))
    except (Occupied, OSError) as failure:
        print(f"sandbox: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
