"""Named crash points: a test names one and the process dies there as by SIGKILL (development mode only).

`TRUEUP_CRASH_AT=orchestrator-commands.committed:2` dies the second time that point is reached.
"""

import os
import signal


class RealCrashPoints:
    """Dies at one named point, once it was reached often enough. Without a name it costs one comparison."""

    def __init__(self, specification: str = "") -> None:
        name, _, count = specification.partition(":")
        self._name = name
        self._left = int(count) if count else 1

    def reach(self, point: str) -> None:
        """Pass, or die here."""
        if point != self._name:
            return
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
