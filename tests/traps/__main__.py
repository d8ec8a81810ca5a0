"""`python -m tests.traps [--write FILE]`: the inventory of traps, printed, or written as a page of evidence."""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.traps.inventory import TRAPS, table
from trueup_devkit.evidence import write_page

INTRO = """
What was measured or read before building, as tests on the product: each row is something that harms who does not know
it, and the tests that fail if the product falls into it. All of them run in `make test`.
"""


def main() -> None:
    """Print or write the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.traps", description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the page instead of printing")
    path = parser.parse_args().write
    if path is None:
        print("\n".join(table()))
    else:
        write_page(path, "Traps", f"python -m tests.traps --write {path}", INTRO, table())
    tests = {name for trap in TRAPS for name in trap.tests}
    print(f"{len(TRAPS)} traps, {len(tests)} tests")


if __name__ == "__main__":
    main()
