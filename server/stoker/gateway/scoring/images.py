"""Decodes the images of requests into rows: small ones at once, others on a few threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import cache, partial
from typing import TYPE_CHECKING, Final

import numpy as np

from stoker.errors import Overloaded, StokerError
from stoker.gateway.scoring.dialects import JsonDialect
from stoker.gateway.scoring.pixel_budget import PixelBudget, PixelShare
from stoker.settings.image_input import ImageInput
from stoker.system.resources import trim_heap
from stoker.tensors import Signature
from stoker.wire.images import ImageReader, OpenedImages

if TYPE_CHECKING:
    from stoker.gateway.rows.ticket import Exchange, Rows, Ticket
    from stoker.gateway.scoring.call import Call, ServiceBase, UnlockedDecoder
    from stoker.wire.script_requests import RequestHead

_THREADS: Final = 2
_MAX_WAITING: Final = 128
# Limit for all images being decoded, in images of the largest size: half a minute of work for the threads.
_MAX_LARGEST_IMAGES: Final = 128
# Below both limits decoding takes less than a millisecond, so that a change of threads is not worth it.
_QUICK_BODY_BYTES: Final = 1 << 16
_QUICK_PIXELS: Final = 1 << 16
# Memory left by larger requests is returned when no other has come for this time; the next one would reuse it.
_LARGE_PIXELS: Final = 1 << 20
_QUIET_NS: Final = 1_000_000_000


class ImageScoring:
    """Decodes the images of one model in one frontend.

    Args:
        threads: Where larger images are decoded; by default all models of the process share two threads.
    """

    def __init__(
        self,
        image: ImageInput,
        *,
        max_pixels: int,
        max_rows_bytes: int,
        threads: Executor | None = None,
        budget: PixelBudget | None = None,
    ) -> None:
        self._image = image
        self._max_pixels = max_pixels
        self._max_rows_bytes = max_rows_bytes
        self._threads = threads or _shared_threads()
        self._budget = budget or _shared_budget(max_pixels)
        self._reader: ImageReader | None = None
        self._waiting: set[_Decoding] = set()
        self._leftovers = False
        self._quiet_since_ns: int | None = None

    def attach(self, signature: Signature) -> None:
        """Decode for a model with this signature from now on."""
        self._reader = ImageReader(
            self._image, signature, max_pixels=self._max_pixels, max_rows_bytes=self._max_rows_bytes
        )

    @property
    def idle(self) -> bool:
        """Whether no image is being decoded."""
        return not self._waiting

    def accepts(self, body: bytes, head: RequestHead | None) -> bool:
        """Whether a body may contain images; other bodies are JSON."""
        return self._reader is not None and self._reader.claims(body, content_type_of(head))

    def read(
        self,
        body: bytes,
        head: RequestHead | None,
        check: Callable[[], None],
        take: Callable[[Rows | BaseException], None],
    ) -> None:
        """Decode a body for which `accepts` is True.

        Args:
            check: Raises if the caller does not wait any more; called on any thread.
            take: Called once with the rows or with an error: at once, or later on the event loop.
        """
        reader, content_type = self._reader, content_type_of(head)
        assert reader is not None, "it claims nothing before there is one"
        try:
            opened = _quick(reader, body, content_type, check)
        except Exception as error:  # noqa: BLE001  # passed to the waiting request
            take(error)
            return
        if isinstance(opened, list):
            take(opened)
            return
        if len(self._waiting) >= _MAX_WAITING:
            take(Overloaded("Too many images wait to be decoded; try again later.", retry_after_s=1))
            return
        try:
            # Nothing has looked into a long body yet.
            share = PixelShare(self._budget, self._max_pixels if opened is None else opened.pixels)
        except Overloaded as error:
            take(error)
            return
        work = self._threads.submit(_decode, reader, body, content_type, opened, check, share)
        decoding = _Decoding(work, check, take)
        self._waiting.add(decoding)

        def finish(done: asyncio.Future[list[np.ndarray]]) -> None:
            self._waiting.discard(decoding)
            self._leftovers |= share.pixels > _LARGE_PIXELS
            self._quiet_since_ns = None
            share.resize(0)
            if not done.cancelled():
                decoding.deliver(done.exception() or done.result())

        asyncio.wrap_future(work).add_done_callback(finish)

    def sweep(self, now_ns: int) -> None:
        """Drop requests whose callers do not wait any more, and return unused memory.

        Call this every few dozen ms.
        """
        # Calling `take` may add requests to the list.
        for decoding in list(self._waiting):
            decoding.cancel_if_unwanted()
        if not self._leftovers or self._waiting:
            return
        if self._quiet_since_ns is None:
            self._quiet_since_ns = now_ns
        elif now_ns - self._quiet_since_ns >= _QUIET_NS:
            self._leftovers = False
            self._threads.submit(trim_heap)


class _Decoding:
    """A request whose images are being decoded, or wait for a thread."""

    def __init__(
        self,
        work: Future[list[np.ndarray]],
        check: Callable[[], None],
        take: Callable[[Rows | BaseException], None],
    ) -> None:
        self._work = work
        self._check = check
        self._deliver: Callable[[Rows | BaseException], None] | None = take

    def deliver(self, outcome: Rows | BaseException) -> None:
        """Pass on the rows or the error, unless the request was given up."""
        take, self._deliver = self._deliver, None
        if take is not None:
            take(outcome)

    def cancel_if_unwanted(self) -> None:
        """Fail the request at once if its caller does not wait any more.

        A thread that works on it stops after an image.
        """
        try:
            self._check()
        except StokerError as error:
            self._work.cancel()
            self.deliver(error)


def content_type_of(head: RequestHead | None) -> bytes:
    """The `Content-Type` of a request, empty if it has none."""
    for name, value in () if head is None else head.headers:
        if name.lower() == "content-type":
            return value.encode("latin-1")
    return b""


def _quick(
    reader: ImageReader, body: bytes, content_type: bytes, check: Callable[[], None]
) -> list[np.ndarray] | OpenedImages | None:
    """The rows of a body that is cheap to decode; otherwise what is known of it already."""
    if len(body) > _QUICK_BODY_BYTES:
        return None
    opened = reader.open(body, content_type)
    if isinstance(opened, OpenedImages) and opened.pixels <= _QUICK_PIXELS:
        return opened.rows(check)
    return opened


def _decode(
    reader: ImageReader,
    body: bytes,
    content_type: bytes,
    opened: OpenedImages | None,
    check: Callable[[], None],
    share: PixelShare,
) -> list[np.ndarray]:
    check()
    found = opened or reader.open(body, content_type)
    if not isinstance(found, OpenedImages):
        return found
    share.resize(found.pixels)
    return found.rows(check)


@cache
def _shared_threads() -> Executor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="images")


@cache
def _shared_budget(max_pixels: int) -> PixelBudget:
    return PixelBudget(_MAX_LARGEST_IMAGES * max_pixels)


class ImageDialect(JsonDialect):
    """Images, and everything that the JSON dialect of the model accepts; answers are those of that dialect.

    Args:
        choose: Returns the exchange for decoded rows; None if no device process has the model.
    """

    wants_head = True

    def __init__(
        self, name: str, images: ImageScoring, numbers: JsonDialect, choose: Callable[[], Exchange | None]
    ) -> None:
        super().__init__(name)
        self._images = images
        self._numbers = numbers
        self._choose = choose

    def check_media(self, content_type: bytes) -> None:
        """Accept every type."""

    def blocks_on_long(self, service: ServiceBase, body: bytes, head: RequestHead | None) -> bool:
        """Whether a body is JSON; images are decoded on threads of their own."""
        del service
        return not self._images.accepts(body, head)

    def unlocked_decoder(self, body: bytes) -> UnlockedDecoder | None:
        """As for JSON alone."""
        return self._numbers.unlocked_decoder(body)

    def submit(self, call: Call, exchange: Exchange, body: bytes, head: RequestHead | None) -> None:
        """Submit the rows of images once they are decoded, those of JSON at once."""
        if self._images.accepts(body, head):
            call.await_rows(exchange)
            self._images.read(body, head, call.check_wanted, partial(self.submit_rows, call))
        else:
            self._numbers.submit(call, exchange, body, head)

    def submit_rows(self, call: Call, rows: Rows | BaseException) -> None:
        """Continue a request whose images were decoded, or could not be."""
        exchange = self._choose()
        if not call.is_awaited:
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
