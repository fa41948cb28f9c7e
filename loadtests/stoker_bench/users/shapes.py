"""How many users a load test has at a moment: pure functions of the time, so that locust only asks."""

from __future__ import annotations

from typing import Literal, get_args

__all__ = ["SHAPES", "Shape", "users_at"]

Shape = Literal["steady", "ramp", "spike"]
SHAPES: tuple[Shape, ...] = get_args(Shape)

RAMP_STEPS = 10
SPIKE_BASE = 0.1
SPIKE_BEGIN, SPIKE_END = 1 / 3, 2 / 3


def users_at(shape: Shape, elapsed_s: float, duration_s: float, peak_users: int) -> int | None:
    """Return the number of users after `elapsed_s` seconds, None once the test is over.

    steady: all users from the start. ramp: ten equal steps up to all users. spike: a tenth of the users, all of
    them during the middle third, then a tenth again, to see how the server recovers.
    """
    if elapsed_s >= duration_s:
        return None
    progress = elapsed_s / duration_s
    match shape:
        case "steady":
            users = float(peak_users)
        case "ramp":
            users = peak_users * (int(progress * RAMP_STEPS) + 1) / RAMP_STEPS
        case "spike":
            users = float(peak_users) if SPIKE_BEGIN <= progress < SPIKE_END else peak_users * SPIKE_BASE
    return max(1, round(users))
