"""A real Chromium for tests: the one that is named, on the path, or that playwright brought; or the reason for none.

`python -m tests.browser.chromium` gets one where there is none: playwright's own build, else the system's package.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
PLACES = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)
INSTALL_SECONDS_MAX = 600
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--force-color-profile=srgb")


def missing() -> str | None:
    """Why no browser can be had; None where one can."""
    if importlib.util.find_spec("playwright") is None:
        return "playwright is not installed: make test-browser installs it"
    if executable() is None:
        return "no Chromium: install one, or name it in TRUEUP_BROWSER"
    return None


def executable() -> str | None:
    """The browser's program."""
    named = os.environ.get("TRUEUP_BROWSER")
    if named:
        return named
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    return found or next((place for place in PLACES if Path(place).exists()), None) or _brought()


def _brought() -> str | None:
    """The browser that playwright downloaded, where it could."""
    folder = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or Path.home() / ".cache" / "ms-playwright")
    programs = sorted(folder.glob("chromium-*/chrome-linux*/chrome")) if folder.is_dir() else []
    return str(programs[-1]) if programs else None


def install() -> bool:
    """Get a browser where there is none; True where there is one in the end."""
    ways = [[sys.executable, "-m", "playwright", "install", "chromium"]]
    if shutil.which("apt-get") and os.geteuid() == 0:
        ways += [["apt-get", "update", "-q"], ["apt-get", "install", "-y", "-q", "--no-install-recommends", "chromium"]]
    for way in ways:
        if executable() is not None:
            return True
        print(f"no Chromium yet: {' '.join(way)}", file=sys.stderr)
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(way, check=False, timeout=INSTALL_SECONDS_MAX, stdout=sys.stderr)
    return executable() is not None


if __name__ == "__main__":
    print(f"browser: {executable()}" if install() else "no browser: the tests in tests/browser will be skipped")
