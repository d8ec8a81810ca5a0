"""`python -m tests.mutants.seeds`: run seeds until one comes to a violation. Status 0: none did, 1: one did."""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import sys
from pathlib import Path
from typing import Final

from tests.simulation.run import run_seed

SLIPS: Final = re.compile(r"\b(Import|ModuleNotFound|Syntax|Name|Attribute|Type)Error\b")
"""A violation that only says that the program fell over is no violation of a law."""


def main() -> int:
    """Run, tell, and leave a report for the runner. An exception of its own ends it with status 2."""
    parser = argparse.ArgumentParser(prog="tests.mutants.seeds", description="seeds until one comes to a violation")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--theme", default=None)
    parser.add_argument("--sagas", choices=("yes", "no"), default=None)
    arguments = parser.parse_args()
    sagas = None if arguments.sagas is None else arguments.sagas == "yes"
    gc.disable()
    found = None
    for seed in range(arguments.first, arguments.first + arguments.count):
        result = run_seed(seed, arguments.theme, sagas=sagas)
        if result.violation is not None:
            kind = "error" if SLIPS.search(result.violation) else "assertion"
            found = {"test": f"seed {seed}", "kind": kind, "says": result.violation}
            break
        if seed % 50 == 49:
            gc.collect()
    module = sys.modules.get(os.environ.get("TRUEUP_MUTANT_MODULE", ""))
    report = {"failed": [found] if found else [], "loaded": getattr(module, "__file__", None)}
    if path := os.environ.get("TRUEUP_MUTANT_REPORT"):
        Path(path).write_text(json.dumps(report), encoding="utf-8")
    print(json.dumps(found))
    return 1 if found else 0


def guarded() -> int:
    """A fault of the program is no violation."""
    try:
        return main()
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(guarded())
