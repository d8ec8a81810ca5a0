"""Memory of this process: what exists at the start stays, and what only a burst needed goes back to the system."""

import contextlib
import ctypes
import gc
from collections.abc import Callable
from typing import Any, Final

GARBAGE_OBJECTS: Final = 20_000
"""New objects between two looks for cycles. A batch makes thousands that die without one."""


def settle() -> None:
    """What exists by now stays: the collector need not look through it again and again (ADR 0010)."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_OBJECTS, 20, 20)


def _trim() -> Callable[[int], Any] | None:
    with contextlib.suppress(OSError, AttributeError):
        return ctypes.CDLL(None).malloc_trim
    return None  # another library than glibc's


_TRIM: Final = _trim()


def give_back() -> None:
    """Hand free pages back to the system.

    glibc does that by itself at the end of its heap only: one small thing that lives on keeps all that is free below.
    """
    if _TRIM is not None:
        _TRIM(0)
