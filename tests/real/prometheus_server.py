"""A real Prometheus of this process' own, which asks one page on loopback for its targets every second."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tests.real.fetching import Unfetchable, debian

START_SECONDS: Final = 30.0
_CONFIG: Final = """
global: {{ scrape_interval: 1m }}
scrape_configs:
  - job_name: trueup
    metrics_path: /probe
    http_sd_configs:
      - url: http://127.0.0.1:{page}/discovery/monitoring/acme
        refresh_interval: 1s
        authorization: {{ type: Bearer, credentials: {token} }}
    relabel_configs:
      - {{ target_label: __address__, replacement: "127.0.0.1:9" }}
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


class PrometheusServer:
    """One running server. Its page is served by whoever listens on `page_port`."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._child: subprocess.Popen[bytes] | None = None
        self.version = ""
        self.page_port = free_port()
        self.url = f"http://127.0.0.1:{free_port()}"

    def start(self) -> PrometheusServer:
        program = shutil.which("prometheus") or str(debian("prometheus", ("prometheus",)) / "usr/bin/prometheus")
        self._folder = tempfile.TemporaryDirectory(prefix="trueup-prometheus-")
        folder = Path(self._folder.name)
        (folder / "config.yml").write_text(_CONFIG.format(page=self.page_port, token=self._token))
        command = [
            program, f"--config.file={folder / 'config.yml'}", f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={self.url.removeprefix('http://')}", "--log.level=error",
        ]  # fmt: skip
        with (folder / "log").open("wb") as log:
            self._child = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        end = time.monotonic() + START_SECONDS
        while not self._ready():
            if self._child.poll() is not None or time.monotonic() > end:
                told = (folder / "log").read_text(errors="replace").strip().splitlines()
                self.stop()
                raise Unfetchable(f"prometheus did not start: {told[-1][:200] if told else 'without a word'}")
            time.sleep(0.1)
        self.version = str(self.ask("/api/v1/status/buildinfo")["version"])
        return self

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def ask(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=10) as answer:
            return json.load(answer)["data"]

    def age_seconds(self) -> float:
        started = datetime.fromisoformat(self.ask("/api/v1/status/runtimeinfo")["startTime"])
        return time.time() - started.astimezone(UTC).timestamp()

    def stop(self) -> None:
        if self._child is not None:
            self._child.terminate()
            self._child.wait(20)
            self._child = None
            self._folder.cleanup()
