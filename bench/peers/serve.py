"""A peer's FastAPI application under uvicorn with uvloop and httptools, as the floor and Trueup's gateway are served.

Several processes may share one port: the kernel deals out connections. Run: `python -m bench.peers.serve NAME PORT`.
"""

import asyncio
import importlib
import socket
import sys

import uvicorn

READY = "serving"
KEEP_ALIVE_SECONDS = 120


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            print(READY, flush=True)


def main(module: str, port: int) -> None:
    """Serve until a signal ends it."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind(("127.0.0.1", port))
    application = importlib.import_module(module).app
    config = uvicorn.Config(
        application,
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="warning",
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
    )
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(_Server(config).serve(sockets=[listener]))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
