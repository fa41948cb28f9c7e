"""A request to a pipeline, between its body and its answer."""

from __future__ import annotations

from typing import Any

from stoker.gateway.scoring.call import Call

__all__ = ["PipelineCall"]


class PipelineCall(Call):
    """A request to a pipeline; without slots, so that others can stand before it.

    Attributes:
        exchange: What has its steps.
        step_lines: Header lines with what each step has taken.
    """

    exchange: Any
    step_lines = b""

    def answer(self, status: int, lines: bytes, body: bytes) -> None:
        """Give the caller the answer, and say what each step has taken."""
        super().answer(status, lines + self.step_lines, body)
