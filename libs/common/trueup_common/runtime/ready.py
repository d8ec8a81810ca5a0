"""Asks a process whether it is ready, as a container's health check: exit code 0 or 1, and what is missing.

`python -m trueup_common.runtime.ready` asks the process whose settings these are; an address as argument asks that one.
It imports next to nothing, because it is started every few seconds.
"""

import os
import sys
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit

TIMEOUT_SECONDS = 4.0
EVERYWHERE = {"", "0.0.0.0", "::"}


def own_address(environment: dict[str, str]) -> str:
    """Where the process with this environment answers."""
    host = environment.get("TRUEUP_HOST", "")
    port = environment.get("TRUEUP_HEALTH_PORT") or environment.get("TRUEUP_PORT", "8080")
    return f"http://{'127.0.0.1' if host in EVERYWHERE else host}:{port}/readyz"


def ask(address: str) -> tuple[bool, str]:
    """Whether it is ready, and what it says."""
    parts = urlsplit(address)
    connection = HTTPConnection(parts.hostname or "127.0.0.1", parts.port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", f"{parts.path}?{parts.query}")
        answer = connection.getresponse()
        return answer.status == 200, answer.read(2000).decode("utf-8", "replace")
    except (OSError, HTTPException) as error:
        return False, f"{type(error).__name__}: {error}"
    finally:
        connection.close()


def main() -> int:
    """Ask once."""
    is_ready, told = ask(sys.argv[1] if len(sys.argv) > 1 else own_address(dict(os.environ)))
    sys.stdout.write(told + "\n")
    return 0 if is_ready else 1


if __name__ == "__main__":
    raise SystemExit(main())
