"""Calls to a model with one output of fixed size, whose answers are encoded together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.gateway.scoring.call import Call

if TYPE_CHECKING:
    import numpy as np

__all__ = ["JoiningCall"]


class JoiningCall(Call):
    """A call to a model with one output of fixed size; calls whose rows return together are answered together."""

    __slots__ = ()

    joins = True

    def complete_together(self, tickets: list[JoiningCall], outputs: np.ndarray) -> None:
        """Answer each with its row of the output, `[tickets, *row_shape]`.

        Raises:
            Exception: None of the calls has been answered.
        """
        dialect = self.dialect
        if any(call.dialect is not dialect for call in tickets):
            for call in tickets:
                call.settle()
        else:
            (dialect or self._service.dialect).complete_together(tickets, outputs)
