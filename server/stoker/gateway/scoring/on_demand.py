"""Requests to a model that is loaded on demand: while it is not in memory, they wait for it and have it loaded."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from stoker.errors import NotReady, Overloaded, QuotaExceeded, StokerError
from stoker.gateway.scoring.dialects import Unloaded
from stoker.metrics.layout import UNLOADED_SLOT

if TYPE_CHECKING:
    from stoker.gateway.rows.ticket import Exchange
    from stoker.gateway.scoring.call import Call
    from stoker.wire.script_requests import RequestHead

_MAX_REQUESTS: Final = 1024
_MAX_BYTES: Final = 64 << 20
_MAX_CALLERS: Final = 16
_TURN_REQUESTS: Final = 64
"""How many waiting requests are submitted in one turn of the loop: others must not wait for all of them."""


def wait_line(wait_ns: int) -> bytes:
    """Return the header line that tells how long a request has waited for its model to be loaded."""
    return b"server-timing: load;dur=%.3f\r\n" % (wait_ns / 1e6)


class NeverLoaded(Unloaded):
    """The dialect of a model whose tensors are not known: requests come with their heads, which it may want."""

    direct = False
    wants_head = True


class HeldBodies:
    """The bytes of all bodies that wait in a frontend for models to be loaded."""

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0

    def has_room(self, size_bytes: int) -> bool:
        """Whether a further body may wait."""
        return self.held_bytes + size_bytes <= self.max_bytes


class OnDemand:
    """The requests to one model that wait until it is loaded.

    Attributes:
        load_s: How long the model is expected to load; 0 if nothing is known.
        slot: Its slot of the metrics.
        leaving: Exchanges with an unloaded model's device processes, which finish its last requests.
    """

    def __init__(
        self,
        name: str,
        submit: Callable[[Call, bytes, RequestHead | None], None],
        wake: Callable[[float, str], Awaitable[None]],
        held: HeldBodies,
        *,
        slot: int = UNLOADED_SLOT,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        note_wait: Callable[[int], None] | None = None,
    ) -> None:
        """Create it for a model that is not loaded.

        Args:
            submit: Submits a request once the model is loaded.
            wake: Has the model loaded for a request that waits so many seconds, of a caller with this name; raises
                a StokerError if that is impossible.
            held: Shared by all models of the frontend.
            note_wait: Called with the nanoseconds that a request has waited.
        """
        self.load_s, self.slot = 0.0, slot
        self.leaving: list[Exchange] = []
        self._name, self._submit, self._wake, self._held = name, submit, wake, held
        self._clock_ns, self._note_wait = clock_ns, note_wait
        self._waiting: dict[Call, tuple[bytes, RequestHead | None, int]] = {}
        self._loading: dict[str, asyncio.Task[StokerError | None]] = {}
        """By caller: the load comes in the turn of the first of them."""
        self._requested_ns = 0
        self._leases = 0
        self._when_served: Callable[[], None] | None = None

    @property
    def is_owed(self) -> bool:
        """Whether requests for which the model was loaded have not run yet."""
        return bool(self._waiting or self._leases)

    @contextmanager
    def lease(self) -> Iterator[None]:
        """Keep the model, once it is loaded, until a request is submitted that waits elsewhere for the load."""
        self._leases += 1
        try:
            yield
        finally:
            self._leases -= 1
            self._notify_served()

    def when_served(self, unload: Callable[[], None]) -> None:
        """Unload the model, which is loaded, once nobody is owed it any more: now or later."""
        self._when_served = unload
        self._notify_served()

    def _notify_served(self) -> None:
        if not self.is_owed and self._when_served is not None:
            unload, self._when_served = self._when_served, None
            unload()

    @property
    def idle(self) -> bool:
        """Whether no request waits, and none is left in an unloaded model."""
        return not self._waiting and not self.leaving

    def hold(self, call: Call, body: bytes, head: RequestHead | None, timeout_ns: int | None) -> None:
        """Let a request wait for the model, or refuse it if its quotas are used up or the load takes too long.

        Args:
            timeout_ns: How long the caller waits, by the request itself; None if it does not say.
        """
        try:
            # Others are not unloaded for a request that would be refused.
            call.check_quota()
        except QuotaExceeded as error:
            call.refuse(error)
            return
        now_ns = self._clock_ns()
        call.shorten(timeout_ns)
        self._load(call.deadline_ns - now_ns, call.key_name)
        ready_ns = self._requested_ns + round(self.load_s * 1e9)
        if self.load_s and ready_ns > call.deadline_ns:
            wait_s = max(1, math.ceil((ready_ns - now_ns) / 1e9))
            call.refuse(
                NotReady(f"{self._name} is not loaded, and loads for about {wait_s} s.", retry_after_s=wait_s)
            )
        elif len(self._waiting) >= _MAX_REQUESTS or not self._held.has_room(len(body)):
            call.refuse(
                Overloaded(
                    f"{self._name} is not loaded, and too many requests wait for models to be loaded.",
                    retry_after_s=max(1, math.ceil(self.load_s)),
                )
            )
        else:
            self._waiting[call] = (body, head, now_ns)
            self._held.held_bytes += len(body)

    def release(self) -> None:
        """Submit the requests that have waited: the model is loaded."""
        for call in list(self._waiting)[:_TURN_REQUESTS]:
            body, head, since_ns = self._forget(call)
            if call.is_awaited:
                wait_ns = self._clock_ns() - since_ns
                if self._note_wait is not None:
                    self._note_wait(wait_ns)
                call.add_lines(wait_line(wait_ns))
                self._submit(call, body, head)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self.release)
        else:
            self._notify_served()

    def _refuse(self, error: StokerError) -> None:
        """Refuse the requests that wait, but for those of callers whose turn may come yet."""
        for call in list(self._waiting):
            if call.key_name not in self._loading:
                self._forget(call)
                if call.is_awaited:
                    call.refuse(error)

    def sweep(self, now_ns: int) -> None:
        """Fail the requests whose deadline has passed."""
        for exchange in self.leaving:
            exchange.sweep(now_ns)
        for call in list(self._waiting):
            if not call.is_awaited:
                self._forget(call)
            elif call.deadline_ns <= now_ns:
                self._forget(call)
                call.refuse(call.timeout_error(begun=False))

    async def load(self, timeout_ns: int, caller: str) -> int:
        """Have the model loaded, and return when it is; returns the nanoseconds that took.

        Raises:
            NotReady: It is not within the time.
            StokerError: It cannot be loaded now.
        """
        begun_ns = self._clock_ns()
        done, _ = await asyncio.wait({self._load(timeout_ns, caller)}, timeout=timeout_ns / 1e9)
        if not done:
            raise NotReady(f"{self._name} is not loaded yet.", retry_after_s=max(1, math.ceil(self.load_s)))
        if (error := done.pop().result()) is not None:
            raise error
        wait_ns = self._clock_ns() - begun_ns
        if self._note_wait is not None:
            self._note_wait(wait_ns)
        return wait_ns

    def _load(self, timeout_ns: int, caller: str) -> asyncio.Task[StokerError | None]:
        if not self._loading:
            self._requested_ns = self._clock_ns()
        elif len(self._loading) >= _MAX_CALLERS and caller not in self._loading:
            return next(iter(self._loading.values()))
        if caller not in self._loading:
            asking = self._ask(timeout_ns / 1e9, caller)
            self._loading[caller] = asyncio.get_running_loop().create_task(asking)
        return self._loading[caller]

    async def _ask(self, timeout_s: float, caller: str) -> StokerError | None:
        try:
            await self._wake(timeout_s, caller)
        except StokerError as error:
            refused = error.with_traceback(None)
        else:
            return None
        finally:
            del self._loading[caller]
        self._refuse(refused)
        return refused

    def _forget(self, call: Call) -> tuple[bytes, RequestHead | None, int]:
        waiting = self._waiting.pop(call)
        self._held.held_bytes -= len(waiting[0])
        return waiting
