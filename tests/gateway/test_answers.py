"""Who waits is told by a nudge, and what was told is remembered for a while, within a bound."""

from __future__ import annotations

import json
from typing import Any

from trueup_gateway.answers import TOLD_BYTES_MAX, AnswerBoard


def told(number: int, size: int) -> Any:
    """A nudge as it comes from the bus."""
    row = {"command_id": f"cmd_{number}", "workflow_id": f"wf_{number}", "state_version": 5, "state": "SUCCESS"}
    answered = {"operation": {**row, "payload": "x" * size}, "instance": {"state_version": 7}}
    return type("Raw", (), {"data": json.dumps(answered).encode()})()


def test_what_was_told_is_bounded_by_bytes_and_the_newest_stays() -> None:
    """Commands with large payloads do not fill this process; their ends are read from the read model instead.

    Requirements: B5
    """
    board, size = AnswerBoard(None), 500_000  # type: ignore[arg-type]
    stored = {"state_version": 1}
    for number in range(60):
        board.nudge(told(number, size))
        assert board.newest(f"cmd_{number}", stored)["payload"] == "x" * size
        assert board.newest(f"wf_{number}", stored) == {"state_version": 7}
    kept = [number for number in range(60) if board.newest(f"cmd_{number}", stored) is not stored]
    assert kept == list(range(60 - len(kept), 60))
    assert 2 <= len(kept) <= TOLD_BYTES_MAX // size
    for number in range(1000, 1500):
        board.nudge(told(number, 1000))
    assert all(board.newest(f"cmd_{number}", stored) is not stored for number in range(1000, 1500))


def test_what_the_read_model_has_is_forgotten() -> None:
    """A row that is as new as what was told is the truth from then on."""
    board = AnswerBoard(None)  # type: ignore[arg-type]
    board.nudge(told(1, 10))
    stored = {"state_version": 5}
    assert board.newest("cmd_1", stored) is stored
    older = {"state_version": 4}
    assert board.newest("cmd_1", older) is older
