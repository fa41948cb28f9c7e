"""Runs the requests of the spool, as if their callers had sent them now: through the app, in the lowest tier.

Each frontend looks for requests that nobody runs, so what a killed process has left is run by another one. Callers
take turns, and share the places of requests, of large requests and of callbacks; see `Turns`. A request that is
refused, because the model is busy, is loaded or has used up its caller's quota, waits and is sent again until it
expires.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from stoker.errors import AttemptsUsedUp
from stoker.gateway.http.responses import error_body, json_lines, parse_error, split_lines
from stoker.gateway.later.callbacks import RETRY_S, send_callback
from stoker.gateway.later.spool import OWNER_CHARS, Claim, DamagedFile, Spool, Stored
from stoker.gateway.later.turns import Turns
from stoker.keys.access import name_caller

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message

logger = logging.getLogger(__name__)

_AT_ONCE: Final = 64
"""How many requests a frontend runs at once: enough to fill batches."""
_LARGE_AT_ONCE: Final = 8
"""How many large ones: their bodies are in memory, beside those that the budget of bodies counts."""
_CALLBACKS_AT_ONCE: Final = 16
_THREADS: Final = 16
"""More than the large files that are written and flushed at one time."""
_SCAN_S: Final = 1.0
_SWEEP_SCANS: Final = 60
_FULL_QUEUE: Final = 1000
"""How many ids of an owner a scan queues: the others are found once these have run."""
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
        self._first_wait_s, self._longest_wait_s = first_wait_s, longest_wait_s
        self._turns = Turns(at_once, self._run)
        self._large = Turns(_LARGE_AT_ONCE, partial(self._run, is_large=True))
        self._callbacks = Turns(_CALLBACKS_AT_ONCE, self._deliver)
        self._known: set[str] = set()
        """Ids that wait here, run here, or are waited for."""
        self._telling: set[str] = set()
        """Ids whose callbacks wait here, are sent, or are waited for."""
        self._waits_s: dict[str, float] = {}
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="spool")
        self._senders = ThreadPoolExecutor(_CALLBACKS_AT_ONCE, thread_name_prefix="callback")
        self._scan: asyncio.Task[None] | None = None

    async def call(self, work: Callable[..., _Result], *arguments: Any) -> _Result:
        """Run a method of the spool on a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    def start(self) -> None:
        """Begin to run requests."""
        if self._scan is None:
            for turns in self._all_turns():
                turns.start()
            self._scan = asyncio.ensure_future(self._look())

    def pause(self) -> None:
        """Begin no further request."""
        for turns in self._all_turns():
            turns.pause()
        if self._scan is not None:
            self._scan.cancel()

    async def stop(self, timeout_s: float) -> None:
        """Wait for the requests that run; those that take longer run again elsewhere."""
        self.pause()
        running = [task for turns in self._all_turns() for task in turns.running]
        if running:
            await asyncio.wait(running, timeout=timeout_s)

    def _all_turns(self) -> tuple[Turns, ...]:
        return self._turns, self._large, self._callbacks

    def submit(self, name: str) -> None:
        """Queue a request that was added to the spool."""
        if name not in self._known:
            self._known.add(name)
            self._turns.put(name)

    async def _look(self) -> None:
        """Find what other processes have left, again and again."""
        scans = 0
        while True:
            try:
                if scans % _SWEEP_SCANS == 0:
                    await self.call(self.spool.sweep)
                scans += 1
                for name in await self.call(_find_new, self.spool.waiting_ids, self._known, self._turns):
                    self.submit(name)
                for name in await self.call(
                    _find_new, self.spool.waiting_callbacks, self._telling, self._callbacks
                ):
                    self._tell(name)
            except OSError as error:
                logger.warning("requests to be answered later cannot be looked for: %s", error)
            await asyncio.sleep(_SCAN_S)

    async def _run(self, name: str, *, is_large: bool = False) -> None:
        wait_s = None
        try:
            claim = await self.call(self.spool.claim, name)
            if claim is not None and claim.size_bytes > _LARGE_BYTES and not is_large:
                # It takes no place of others while it waits for one of the large ones.
                await self.call(lambda: self.spool.release(claim, ran=False))
                self._large.put(name)
                return
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
        self.submit(name)

    def _longer_wait(self, name: str, least_s: float = 0.0) -> float:
        """How long a request waits before it is tried again: longer each time."""
        doubled_s = 2 * self._waits_s.get(name, self._first_wait_s / 2)
        wait_s = self._waits_s[name] = min(self._longest_wait_s, doubled_s)
        return max(wait_s, min(least_s, self._longest_wait_s))

    async def _answer(self, claim: Claim) -> float | None:
        """Run a claimed request; returns after how many seconds it is tried again, None if it is answered."""
        owned = True
        try:
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
            self._callbacks.put(name)

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
        except OSError as error:
            logger.warning("a callback waits: %s", error)
        except Exception:
            logger.exception("a callback failed")
        finally:
            if delivered:
                self._waits_s.pop("callback " + name, None)
                self._telling.discard(name)
            else:
                wait_s = max(RETRY_S, self._longer_wait("callback " + name))
                asyncio.get_running_loop().call_later(wait_s, self._telling.discard, name)


def _find_new(find_ids: Callable[[], list[str]], known: Container[str], turns: Turns) -> list[str]:
    """Return ids that are not known yet, of each owner no more than its queue has room for."""
    room: dict[str, int] = {}
    new = []
    for name in find_ids():
        if name in known:
            continue
        owner = name[:OWNER_CHARS]
        left = room.get(owner)
        if left is None:
            left = _FULL_QUEUE - turns.waiting(owner)
        if left > 0:
            new.append(name)
        room[owner] = left - 1
    return new


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
