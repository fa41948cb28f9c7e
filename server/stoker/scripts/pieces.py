"""Scripts whose `run` yields: the pieces are sent one by one, or joined to one answer."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Generator
from typing import Any, Final

from stoker.errors import (
    RequestError,
)
from stoker.scripts.call_watchdog import Watchdog, call_contained
from stoker.scripts.coroutines import finish
from stoker.scripts.results import encode_result
from stoker.wire.script_streams import CallerGone, PieceWriter

_END: Final = object()


def yields(run: Callable[..., Any]) -> bool:
    """Whether `run` is a generator function, or an asynchronous one."""
    plain = inspect.unwrap(run)
    return inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain)


def is_yielded(result: Any) -> bool:
    """Whether `run` has returned a generator, of either kind."""
    return inspect.isgenerator(result) or inspect.isasyncgen(result)


class Pieces:
    """The pieces that one call of `run` yields.

    Each piece is one call to the script: it may take as long as a `run` that returns.

    Args:
        watchdog: Ends calls that take too long; None ends none.
    """

    def __init__(self, yielded: Any, watchdog: Watchdog | None) -> None:
        self._yielded = yielded
        self._watchdog = watchdog
        self._writer: PieceWriter | None = None

    def send(self, place: str, timeout_s: float) -> bool:
        """Send all pieces to a frontend, each as soon as it is yielded.

        If the caller goes, an asynchronous generator is cancelled where it awaits. A plain generator is closed at its
        next piece, because no exception can be raised in code that blocks.

        Args:
            place: The stream to the frontend, see `stoker.wire.script_streams`.
            timeout_s: How long the caller may take to read a piece.

        Returns:
            Whether the caller has waited for all pieces; the generator is closed if not.

        Raises:
            Exception: The script raised it, or a piece cannot be encoded; the pieces before it have been sent.
        """
        writer = self._writer = PieceWriter(place, timeout_s)
        try:
            for piece in self:
                try:
                    writer.send(piece)
                except OSError:
                    return False
        except CallerGone:
            return False
        finally:
            try:
                self._guarded(self._close)
            finally:
                writer.close()
        return True

    def whole(self) -> bytes:
        """Return all pieces as one JSON list."""
        try:
            return b"[" + b", ".join(self) + b"]"
        finally:
            self._guarded(self._close)

    def only(self) -> bytes:
        """Return the only piece.

        Raises:
            RequestError: There are more pieces, or none; the text is Triton's.
        """
        try:
            found = list(itertools.islice(self, 2))
        finally:
            self._guarded(self._close)
        if len(found) != 1:
            raise RequestError(
                "generate expects model to produce exactly 1 response, use generate_stream for model types that may "
                "produce multiple responses"
            )
        return found[0]

    def __iter__(self) -> Generator[bytes, None, None]:
        """Yield the pieces as JSON."""
        while (piece := self._guarded(self._next)) is not _END:
            yield encode_result(piece)

    def _next(self) -> Any:
        if inspect.isgenerator(self._yielded):
            return next(self._yielded, _END)
        upcoming = anext(self._yielded, _END)
        return finish(upcoming if self._writer is None else self._writer.while_open(upcoming))

    def _close(self) -> None:
        if inspect.isgenerator(self._yielded):
            self._yielded.close()
        else:
            finish(self._yielded.aclose())

    def _guarded(self, function: Callable[[], Any]) -> Any:
        return call_contained(function, self._watchdog)
