"""Calls to a pipeline: answers also report the time of each step."""

from __future__ import annotations

from typing import Any

from stoker.gateway.scoring.call import Call

__all__ = ["PipelineCall"]


class PipelineCall(Call):
    """A request to a pipeline; without slots, so that it can be mixed into other call classes.

    Attributes:
        exchange: The pipeline's exchange.
        step_lines: Header lines with the times of the steps.
    """

    exchange: Any
    step_lines = b""

    def answer(self, status: int, lines: bytes, body: bytes) -> None:
        """Answer the caller, with the times of the steps among the headers."""
        super().answer(status, lines + self.step_lines, body)
