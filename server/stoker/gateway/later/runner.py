"""Runs the requests of the spool, as if their callers had sent them now: through the app, in the lowest tier.

Each frontend looks for requests that nobody runs, so what a killed process has left is run by another one. Senders
take turns. A request that is refused, because the model is busy, is loaded or has used up its caller's quota, waits
and is sent again until it expires.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from stoker.errors import AttemptsUsedUp
from stoker.gateway.http.responses import error_body, json_lines, parse_error, split_lines
from stoker.gateway.later.callbacks import RETRY_S, send_callback
from stoker.gateway.later.spool import OWNER_CHARS, Claim, DamagedFile, Spool, Stored
from stoker.keys.access import name_caller

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message

logger = logging.getLogger(__name__)

_AT_ONCE: Final = 64
"""How many requests a frontend runs at once: enough to fill batches."""
_THREADS: Final = 4
_SCAN_S: Final = 1.0
_SWEEP_SCANS: Final = 60
_FULL_QUEUE: Final = 1000
_LARGE_BYTES: Final = 1 << 20
_FIRST_WAIT_S: Final = 0.25
_LONGEST_WAIT_S: Final = 60.0
_MOST_LOST: Final = 10
_MOST_ATTEMPTS: Final = 100
_REFUSED: Final = frozenset(
    {"overloaded", "not_ready", "quota_exceeded", "too_many_sequences", "unknown_service"}
)
"""Codes of requests that did not run; a model that was served when the request arrived may be so again."""
_LATE: Final = "deadline_exceeded"
_LOST: Final = 503
_REDIRECTS: Final = 300

_Result = TypeVar("_Result")


class _Turns:
    """Ids in order, but owners take turns."""

    def __init__(self) -> None:
        self._queues: OrderedDict[str, deque[str]] = OrderedDict()
        self._count = 0
        self._arrived = asyncio.Condition()

    def __len__(self) -> int:
        return self._count

    async def put(self, name: str) -> None:
        async with self._arrived:
            self._queues.setdefault(name[:OWNER_CHARS], deque()).append(name)
            self._count += 1
            self._arrived.notify()

    async def next(self) -> str:
        async with self._arrived:
            while not self._count:
                await self._arrived.wait()
            owner, queue = self._queues.popitem(last=False)
            name = queue.popleft()
            if queue:
                self._queues[owner] = queue
            self._count -= 1
            return name


class SpoolRunner:
    """Runs the requests of the spool in one frontend, and delivers callbacks."""

    def __init__(
        self,
        spool: Spool,
        app: ASGIApp,
        *,
        at_once: int = _AT_ONCE,
        first_wait_s: float = _FIRST_WAIT_S,
        longest_wait_s: float = _LONGEST_WAIT_S,
    ) -> None:
        """Prepare it.

        Args:
            app: Answers the requests.
            at_once: How many requests it runs at once.
            first_wait_s, longest_wait_s: How long a refused request waits, from the first time to the last.
        """
        self.spool = spool
        self._app = app
        self._at_once = at_once
        self._first_wait_s, self._longest_wait_s = first_wait_s, longest_wait_s
        self._turns = _Turns()
        self._known: set[str] = set()
        """Ids that wait here, run here, or are waited for."""
        self._telling: set[str] = set()
        self._waits_s: dict[str, float] = {}
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="spool")
        self._senders = ThreadPoolExecutor(_THREADS, thread_name_prefix="callback")
        self._large = asyncio.Lock()
        self._idle: list[asyncio.Task[None]] = []
        self._running: set[asyncio.Task[None]] = set()

    async def call(self, work: Callable[..., _Result], *arguments: Any) -> _Result:
        """Run a method of the spool on a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    def start(self) -> None:
        """Begin to run requests."""
        if not self._idle:
            work = [self._work() for _ in range(self._at_once)]
            self._idle = [asyncio.ensure_future(one) for one in (*work, self._look())]

    def pause(self) -> None:
        """Begin no further request."""
        for task in self._idle:
            task.cancel()

    async def stop(self, timeout_s: float) -> None:
        """Wait for the requests that run; those that take longer run again elsewhere."""
        self.pause()
        if self._running:
            await asyncio.wait(self._running, timeout=timeout_s)

    async def submit(self, name: str) -> None:
        """Queue a request that was added to the spool."""
        if name not in self._known:
            self._known.add(name)
            await self._turns.put(name)

    async def _look(self) -> None:
        """Find what other processes have left, again and again."""
        scans = 0
        while True:
            try:
                if scans % _SWEEP_SCANS == 0:
                    await self.call(self.spool.sweep)
                scans += 1
                if len(self._turns) < _FULL_QUEUE:
                    for name in await self.call(self.spool.waiting_ids):
                        await self.submit(name)
                for name in await self.call(self.spool.waiting_callbacks):
                    self._tell(name)
            except OSError as error:
                logger.warning("requests to be answered later cannot be looked for: %s", error)
            await asyncio.sleep(_SCAN_S)

    async def _work(self) -> None:
        while True:
            name = await self._turns.next()
            # In a task of its own, which a pause does not cancel.
            task = asyncio.ensure_future(self._run(name))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
            await asyncio.wait([task])

    async def _run(self, name: str) -> None:
        wait_s = None
        try:
            claim = await self.call(self.spool.claim, name)
            if claim is not None:
                wait_s = await self._answer(claim)
        except OSError as error:
            # A full disk, for instance. Its lock is released, so that it can be tried again.
            logger.warning("a request to be answered later waits: %s", error)
            wait_s = self._longer_wait(name)
        except Exception:
            logger.exception("a request to be answered later failed")
            wait_s = self._longer_wait(name)
        if wait_s is None:
            self._waits_s.pop(name, None)
            self._known.discard(name)
        else:
            asyncio.get_running_loop().call_later(wait_s, self._retry, name)

    def _retry(self, name: str) -> None:
        # Forgotten if the process is ending: the next look of another one finds it.
        self._known.discard(name)
        task = asyncio.ensure_future(self.submit(name))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def _longer_wait(self, name: str, least_s: float = 0.0) -> float:
        """How long a request waits before it is tried again: longer each time."""
        doubled_s = 2 * self._waits_s.get(name, self._first_wait_s / 2)
        wait_s = self._waits_s[name] = min(self._longest_wait_s, doubled_s)
        return max(wait_s, min(least_s, self._longest_wait_s))

    async def _answer(self, claim: Claim) -> float | None:
        """Run a claimed request; returns after how many seconds it is tried again, None if it is answered."""
        owned = True
        try:
            if claim.size_bytes > _LARGE_BYTES:
                # One after the other, so that large bodies do not fill the memory.
                async with self._large:
                    outcome = await self._ask(claim)
            else:
                outcome = await self._ask(claim)
            if outcome is None:
                return None
            request, answer = outcome
            code = _code(answer)
            refused = code in _REFUSED
            lost = answer.head["status"] == _LOST and claim.attempt < _MOST_LOST
            if refused or lost or code == _LATE:
                owned = False
                await self.call(lambda: self.spool.release(claim, ran=not refused))
                return self._longer_wait(claim.id, _retry_after_s(answer))
            owned = False
            head = {
                **answer.head,
                **{
                    key: request.head[key]
                    for key in ("model", "caller", "expires_s", "fingerprint", "location")
                },
            }
            callback = request.head.get("callback", "")
            await self.call(self.spool.finish, claim, head, answer.body, callback)
            if callback:
                self._tell(claim.id)
            return None
        finally:
            if owned:
                await self.call(lambda: self.spool.release(claim, ran=True))

    async def _ask(self, claim: Claim) -> tuple[Stored, Stored] | None:
        """The request, and what the app answers; None if it is removed because it has expired or is damaged."""
        try:
            request = await self.call(self.spool.read, claim)
        except (DamagedFile, ValueError):
            logger.error("a request to be answered later is damaged and is dropped: %s", claim.id)  # noqa: TRY400
            await self.call(self.spool.remove, claim.id)
            return None
        if self.spool.has_expired(request.head):
            await self.call(lambda: self.spool.remove(claim.id, expired=True))
            return None
        if claim.attempt > _MOST_ATTEMPTS:
            error = AttemptsUsedUp(
                "The request was begun too often without an answer; it is not tried again."
            )
            body = error_body(error)
            return request, _stored(error.status, split_lines(json_lines(body)), body)
        return request, await ask_app(self._app, request, claim.attempt)

    def _tell(self, name: str) -> None:
        if name not in self._telling:
            self._telling.add(name)
            task = asyncio.ensure_future(self._deliver(name))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _deliver(self, name: str) -> None:
        """Try to deliver a callback; if that fails, another try is made later."""
        delivered = True
        try:
            claimed = await self.call(self.spool.claim_callback, name)
            if claimed is None:
                return
            descriptor, url = claimed
            delivered = False
            try:
                stored, _ = await self.call(self.spool.find, name)
                delivered = await asyncio.get_running_loop().run_in_executor(
                    self._senders,
                    send_callback,
                    url,
                    name,
                    stored,
                    self.spool.secret,
                    self.spool.rules.callback_hosts,
                )
            finally:
                await self.call(lambda: self.spool.release_callback(name, descriptor, delivered=delivered))
        except Exception:
            logger.exception("a callback failed")
        finally:
            if delivered:
                self._waits_s.pop("callback " + name, None)
                self._telling.discard(name)
            else:
                wait_s = max(RETRY_S, self._longer_wait("callback " + name))
                asyncio.get_running_loop().call_later(wait_s, self._telling.discard, name)


async def ask_app(app: ASGIApp, request: Stored, attempt: int) -> Stored:
    """Send a stored request to an app, and return its whole answer: status and headers in the head."""
    head = request.head
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in head["headers"]]
    headers += [
        (b"content-length", b"%d" % len(request.body)),
        (b"stoker-tier", b"low"),
        (b"stoker-attempt", b"%d" % attempt),
    ]
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": head["method"],
        "scheme": "http", "path": head["path"], "raw_path": head["raw_path"].encode("latin-1"),
        "query_string": head["query"].encode("latin-1"), "root_path": "", "headers": headers,
        "client": head["client"], "server": ("localhost", 80), "state": {},
        "stoker.authorization": name_caller(head["caller"]),
    }  # fmt: skip
    received = False
    sent: dict[str, Any] = {}
    pieces: list[bytes] = []

    async def receive() -> Message:
        nonlocal received
        if received:
            await asyncio.get_running_loop().create_future()
        received = True
        return {"type": "http.request", "body": request.body, "more_body": False}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            sent.update(message)
        else:
            pieces.append(message.get("body", b""))

    # Starlette raises a fault again after it has answered 500.
    try:
        await app(scope, receive, send)
    except Exception:
        logger.exception("a request to be answered later failed")
        if not sent:
            raise
    return _stored(sent["status"], sent["headers"], b"".join(pieces))


def _stored(status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> Stored:
    pairs = [
        [name.decode("latin-1"), value.decode("latin-1")]
        for name, value in headers
        if name.lower() not in (b"connection", b"content-length", b"transfer-encoding")
    ]
    return Stored(0, {"status": status, "headers": pairs}, body)


def _code(answer: Stored) -> str:
    """The code of an error: in a header where a protocol's JSON has none."""
    for name, value in answer.head["headers"]:
        if name == "x-stoker-error-code":
            return str(value)
    if answer.head["status"] < _REDIRECTS:
        return ""
    error = parse_error(answer.body)
    return "" if error is None else str(error.get("code", ""))


def _retry_after_s(answer: Stored) -> float:
    for name, value in answer.head["headers"]:
        if name.lower() == "retry-after":
            with suppress(ValueError):
                return float(value)
    return 0.0
