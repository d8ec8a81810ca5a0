"""The example in `examples/memo-adapter` is a whole adapter: it passes the suite that the documentation sends it to."""

import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "memo-adapter"
sys.path.insert(0, str(FOLDER))

from test_memo import TestMemo as _TestMemo  # noqa: E402 - the example is no package of this project


class TestExample(_TestMemo):
    """Requirements: E6"""


def test_the_document_names_what_is_there() -> None:
    """Every file that the page names exists. Requirements: E6"""
    page = (FOLDER.parents[1] / "docs" / "adapters" / "writing-one.md").read_text()
    names = [name.name for name in FOLDER.iterdir() if name.suffix in {".py", ".toml"}]
    assert names and all(name in page for name in names), names


if __name__ == "__main__":
    pytest.main([__file__])
