"""The exchange of a model that takes texts: it makes rows of tokens of the texts of requests, and queues those.

A short request is encoded at once. Longer ones are encoded on threads, a piece of each in turn, so that a caller with
many or long texts delays nobody else.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stoker.errors import NotReady, Overloaded, StokerError, unexpected_error
from stoker.gateway.http.threads import run_in_thread
from stoker.gateway.rows.cache import CachedExchange
from stoker.gateway.rows.exchange import ArenaExchange
from stoker.wire.packed import unpack
from stoker.wire.texts import Tokenizing, TokenRows

if TYPE_CHECKING:
    import socket

    from stoker.arena import Arena
    from stoker.gateway.rows.ticket import Rows, Ticket

logger = logging.getLogger(__name__)

_QUICK_BYTES: Final = 1024
"""Encoding so many bytes takes a fraction of a millisecond: less than a thread costs under load."""
_PIECE_TEXTS: Final = 16
_MOST_WAITING: Final = 128


class TextExchange(ArenaExchange):
    """An exchange that takes texts, and rows of tokens as they are."""

    def __init__(
        self, arena: Arena, doorbell: socket.socket, tokenizing: asyncio.Future[Tokenizing], **how: Any
    ) -> None:
        """Create it for one end of a doorbell, with the tokenizer of its service, which may still be loading."""
        super().__init__(arena, doorbell, **how)
        self._tokenizing = tokenizing
        self._encoding: dict[Ticket, asyncio.Task[None]] = {}

    @property
    def idle(self) -> bool:
        """Whether it holds no requests."""
        return not self._encoding and super().idle

    def submit(self, ticket: Ticket, rows: Rows) -> None:
        """Queue the rows of texts, now or once they are encoded; see `Exchange.submit`.

        Raises:
            Overloaded: Too many requests wait to be encoded.
        """
        texts = rows[0]
        if texts.dtype != object:
            super().submit(ticket, rows)
            return
        if self._tokenizing.done():
            tokenizing = self._tokenizing.result()
            tokenizing.check(texts)
            if sum(map(len, texts.flat)) <= _QUICK_BYTES:
                self._submit_tokens(ticket, [tokenizing.encode(texts)])
                return
        if len(self._encoding) >= _MOST_WAITING:
            raise Overloaded(
                "Too many requests wait for their texts to be encoded; try again later.", retry_after_s=1
            )
        ticket.await_rows(self)
        self._encoding[ticket] = task = asyncio.get_running_loop().create_task(self._encode(ticket, texts))
        # Not by the task itself: one that is cancelled before it begins runs nothing.
        task.add_done_callback(lambda _: self._encoding.pop(ticket))

    def submit_body(self, ticket: Ticket, body: bytes | memoryview) -> None:
        """Queue the rows of packed texts, as the reader of long bodies gives them."""
        self.submit(ticket, list(unpack(bytes(body)).values()))

    def sweep(self, now_ns: int) -> None:
        """Stop encoding for callers that do not wait any more; see `Exchange.sweep`."""
        super().sweep(now_ns)
        for ticket, task in list(self._encoding.items()):
            if ticket.is_open and ticket.deadline_ns <= now_ns:
                ticket.fail(ticket.timeout_error(begun=False))
            if not ticket.is_open:
                task.cancel()

    async def _encode(self, ticket: Ticket, texts: np.ndarray) -> None:
        try:
            # Cancelled, a task would cancel the tokenizer of all others.
            tokenizing = await asyncio.shield(self._tokenizing)
            tokenizing.check(texts)
            encoded = [
                await run_in_thread(tokenizing.encode, texts[start : start + _PIECE_TEXTS], start)
                for start in range(0, len(texts), _PIECE_TEXTS)
            ]
            if self.lost:
                raise NotReady("The device process ended; it is being restarted.", retry_after_s=1)  # noqa: TRY301
            if ticket.is_open:
                self._submit_tokens(ticket, encoded)
        except StokerError as error:
            ticket.fail(error)
        except Exception as error:
            logger.exception("texts could not be encoded")
            ticket.fail(unexpected_error(error))

    def _submit_tokens(self, ticket: Ticket, encoded: list[TokenRows]) -> None:
        rows = np.concatenate([piece.rows for piece in encoded])
        ticket.note_texts(int(rows[:, 0].sum()), sum(piece.cut for piece in encoded))
        super().submit(ticket, [rows])


class CachedTextExchange(TextExchange, CachedExchange):
    """An exchange that takes texts, behind a cache of the answers to their tokens."""
