"""Objectives over a day in which some things went wrong: lines with a legend, budgets, and numbers that fit a phone."""

from __future__ import annotations

from datetime import timedelta

from tests.browser.desk import Desk
from tests.browser.window import Window
from tests.browser.window import window as opening
from tests.gateway.test_numbers import case, changed, count, operation, project
from trueup_common.contracts.states import InstanceStatus, OperationState
from trueup_common.runtime.clock import real_now
from trueup_gateway.core.measures import Bounds
from trueup_gateway.counting import Counting

HOURS = 23
PER_HOUR = 6


async def lived(desk: Desk) -> None:
    """A day: every hour some commands, most of them done in time, some late, in two hours hardly any."""
    events = []
    for hour in range(1, HOURS + 1):
        for number in range(PER_HOUR):
            began = real_now() - timedelta(hours=hour, minutes=5 * number)
            late = (hour, number) in {(9, 0), (9, 1), (10, 2), (3, 4)}
            over = began + timedelta(minutes=40 if late else 2)
            instance = case(began, state_version=3, status=InstanceStatus.CLOSED, closed_at=over)
            row = operation(instance, state_version=3, state=OperationState.SUCCESS, completed_at=over)
            events.append(changed(instance, row))
    await project(desk.edge, *events)
    counting = Counting(Bounds())
    await count(desk.edge, counting)


async def test_a_line_says_what_it_is_and_numbers_stand_beneath_each_other_on_a_phone(
    desk: Desk, window: Window
) -> None:
    """What burns stands first; each line has its legend; what nothing came due for has no budget to look at; on a phone
    every number stands beside the window that it is of.

    Requirements: V3, O4
    """
    await lived(desk)
    await window.log_in("operator", path="/console/login?next=/console/slo")
    board = window.page.locator(".board > .objective")
    first = await board.first.inner_text()
    assert "Operations end within 15 minutes" in first and "hour by hour" in first and "promised" in first
    quiet = board.filter(has_text="nothing due")
    assert await quiet.count() >= 1 and await quiet.locator(".budget, .burns").count() == 0
    await window.is_legible()
    await window.is_sound()
    await window.picture("objectives")
    async with opening(desk.url, viewport={"width": 360, "height": 740}) as phone:
        await phone.log_in("operator", path="/console/login?next=/console/slo")
        await phone.fits()
        await phone.is_legible()
        row = phone.page.locator(".figures tbody tr").first
        assert await row.locator("td[data-label]").evaluate_all(
            "cells => cells.every((one) => one.getBoundingClientRect().right <= innerWidth)"
        ), "nothing is out of sight"
        await phone.picture("objectives-phone")
