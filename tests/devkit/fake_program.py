"""A stand-in for a service or for the sandbox: answers GET /readyz, tells its environment, notes when it is drained."""

from __future__ import annotations

import http.server
import json
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any


class Server(http.server.ThreadingHTTPServer):
    """Shares its port like gateway replicas do."""

    def server_bind(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(("127.0.0.1", self.port))
        self.server_address = self.socket.getsockname()

    def __init__(self, port: int) -> None:
        self.port = port
        super().__init__(("127.0.0.1", port), Answers)


class Answers(http.server.BaseHTTPRequestHandler):
    """Ready, and open about what it was told."""

    def do_GET(self) -> None:
        body = json.dumps({name: value for name, value in os.environ.items() if name.startswith("TRUEUP_")}).encode()
        unready = Path(f"{os.environ['FAKE_DIARY']}.unready.{os.environ.get('TRUEUP_INSTANCE', 'sandbox')}")
        self.send_response(503 if unready.exists() else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        return


def main() -> None:
    name = os.environ.get("TRUEUP_INSTANCE", "sandbox")
    ports = [int(os.environ[key]) for key in ("TRUEUP_HEALTH_PORT",) if key in os.environ]
    if "--port" in sys.argv:
        ports.append(int(sys.argv[sys.argv.index("--port") + 1]))
    if os.environ.get("TRUEUP_SERVICE") == "gateway":
        ports.append(int(os.environ["TRUEUP_PORT"]))
    print(f"{name} up", flush=True)
    if name in os.environ.get("FAKE_BROKEN", "").split(","):
        print("no catalog, giving up", flush=True)
        sys.exit(3)
    for port in ports:
        threading.Thread(target=Server(port).serve_forever, daemon=True).start()
    signal.sigwait({signal.SIGTERM})
    with Path(os.environ["FAKE_DIARY"]).open("a") as diary:
        diary.write(f"{name}\n")


signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
main()
