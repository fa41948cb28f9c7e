"""Images in the bodies of Azure's scoring endpoint; JSON is taken as well."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from stoker.errors import StokerError
from stoker.gateway.scoring.json_dialects import JsonDialect

if TYPE_CHECKING:
    import numpy as np

    from stoker.gateway.rows.exchange import Exchange
    from stoker.gateway.rows.ticket import Rows, Ticket
    from stoker.gateway.scoring.call import Call, Scorer, UnlockedReader
    from stoker.gateway.scoring.image_scoring import ImageScoring
    from stoker.wire.envelope import RequestHead

__all__ = ["ImageDialect"]


class ImageDialect(JsonDialect):
    """Images, and everything that the JSON dialect of the model accepts; answers are those of that dialect.

    Args:
        name: The model's name.
        images: Reads images.
        numbers: The JSON dialect of the model.
        choose: Returns the exchange for decoded rows; None if no device process has the model.
    """

    wants_head = True

    def __init__(
        self,
        name: str,
        images: ImageScoring,
        numbers: JsonDialect,
        choose: Callable[[], Exchange | None],
    ) -> None:
        super().__init__(name)
        self._images = images
        self._numbers = numbers
        self._choose = choose

    def check_media(self, content_type: bytes) -> None:
        """Accept every type."""

    def reads_long(self, service: Scorer, body: bytes, head: RequestHead | None) -> bool:
        """Whether a body is JSON; images are decoded on threads of their own."""
        del service
        return not self._images.claims(body, head)

    def unlocked_reader(self, body: bytes) -> UnlockedReader | None:
        """As for JSON alone."""
        return self._numbers.unlocked_reader(body)

    def submit(self, call: Call, exchange: Exchange, body: bytes, head: RequestHead | None) -> None:
        """Submit the rows of images once they are decoded, those of JSON at once."""
        if self._images.claims(body, head):
            call.await_rows(exchange)
            self._images.read(body, head, call.check_wanted, partial(self.submit_rows, call))
        else:
            self._numbers.submit(call, exchange, body, head)

    def submit_rows(self, call: Call, rows: Rows | BaseException) -> None:
        """Continue a request whose images were decoded, or could not be."""
        exchange = self._choose()
        if not call.wanted:
            return
        if isinstance(rows, StokerError):
            call.refuse(rows)
        elif isinstance(rows, BaseException):
            call.refuse_for_fault(rows)
        elif exchange is None:
            call.refuse(call.service.not_ready())
        else:
            try:
                exchange.submit(call, rows)
            except StokerError as error:
                call.refuse(error)
            except Exception as error:  # noqa: BLE001  # a fault of ours must not cost the connection
                call.refuse_for_fault(error)

    def encode(self, ticket: Ticket) -> bytes:
        """Return the answer in JSON."""
        return self._numbers.encode(ticket)

    def complete_together(self, calls: Sequence[Call], rows: np.ndarray) -> None:
        """Answer as for JSON."""
        self._numbers.complete_together(calls, rows)
