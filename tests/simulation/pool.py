"""Many seeds on all cores: each seed is a world of its own, so they only have to be dealt out and added up."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from typing import Final

from tests.simulation.run import Summary, run_seeds

SHARE: Final = 10
"""Seeds dealt out at once."""


def run_on_all_cores(
    first: int,
    count: int,
    progress: Callable[[Summary, Summary], None],
    *,
    jobs: int | None = None,
    theme: str | None = None,
    sagas: bool | None = None,
) -> Summary:
    """Run seeds `first` … `first + count - 1`. `progress` hears of the sum so far and of what was just added."""
    summary, begun = Summary(), time.perf_counter()
    shares = [(start, min(SHARE, first + count - start)) for start in range(first, first + count, SHARE)]
    workers = min(jobs or os.cpu_count() or 1, len(shares))
    # Forked, so that what is imported here is imported once, and what a test broke on purpose is broken there too.
    with ProcessPoolExecutor(workers, multiprocessing.get_context("fork")) as pool:
        open_: set[Future[Summary]] = {pool.submit(_share, *share, theme, sagas) for share in shares}
        while open_:
            done, open_ = wait(open_, return_when=FIRST_COMPLETED)
            for future in done:
                share = future.result()
                summary.add(share)
                summary.seconds = time.perf_counter() - begun
                progress(summary, share)
    summary.failed.sort(key=lambda result: result.seed)
    return summary


def _share(first: int, count: int, theme: str | None, sagas: bool | None) -> Summary:
    return run_seeds(first, count, theme=theme, sagas=sagas)
