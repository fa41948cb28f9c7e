"""The client for asynchronous code, on asyncio or trio."""

from __future__ import annotations

import inspect
import random
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

import anyio
import httpx

from stoker_client.addresses import Addresses
from stoker_client.answers import Answer, Json, Reply
from stoker_client.bearer import credentials
from stoker_client.flow import PROBE_TIMEOUT_S, ServiceCalls
from stoker_client.gathering import Gathering, check_concurrency
from stoker_client.lanes import event_loop, lanes_of
from stoker_client.opened import AsyncOpened
from stoker_client.pieces import AsyncPieces, pieces_of
from stoker_client.steps import Flow, Outcome, Pause, Piece, Read, Renew, Result, Send, Step, resumed
from stoker_client.urgency import Urgency

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence

    import numpy.typing as npt

    from stoker_client.bearer import AccessToken, AsyncTokenProvider
    from stoker_client.bodies import Rows
    from stoker_client.sequences import SequenceOptions
    from stoker_client.urgency import Tier

__all__ = ["AsyncClient"]


class AsyncClient:
    """Scores rows with one service of a Stoker server, without blocking the event loop while it waits.

    The arguments, answers and errors are those of `Client`; `timeout_s` is exact here, for a call that takes
    longer is cancelled. Connections belong to the event loop that they were made in, and are closed when it ends. In
    another one the client makes new ones, so calls by one `asyncio.run` each are answered, and pay for a connection
    each; event loops of several threads may use one client at the same time.

    Args:
        scoring_uri: The scoring URI, or those of several servers of one service, as for `Client`.
        key: The service's key, or a token; without one, the variable STOKER_KEY; without that, none is sent.
        use_tokens: Fetch short-lived tokens from the service with the key, and send those instead of it.
        token_provider: Returns the credential instead of the key; may be a coroutine function.
        timeout_s: Seconds within which a call has to be answered, all attempts and pauses included.
        retries: How often a request is sent again after the first attempt.
        deadline_ms: After which time from its call an answer is useless, as for `Client`.
        tier: The requested tier.
        ca_file: PEM file of the authorities by which servers of https are trusted; see `Client`.
        transport: The httpx transport to send through.
        clock: Monotonic time in seconds.
        sleep: Waits that many seconds between attempts.
        jitter: Random numbers in [0, 1) that spread the pauses.

    Raises:
        ValueError: An argument is out of range or contradicts another, the URI is not absolute, or the key cannot
            stand in a header.
        OSError: `ca_file` cannot be read, or holds no certificate.
    """

    def __init__(
        self,
        scoring_uri: str | Sequence[str],
        key: str | None = None,
        *,
        use_tokens: bool = False,
        token_provider: AsyncTokenProvider | None = None,
        timeout_s: float = 60.0,
        retries: int = 6,
        deadline_ms: float | None = None,
        tier: Tier | None = None,
        ca_file: str | Path | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._key, credential = credentials(key, use_tokens=use_tokens, provided=token_provider is not None)
        self._addresses = Addresses(scoring_uri)
        if use_tokens:
            self._addresses.token  # noqa: B018  # raises where there can be none
        self._calls = ServiceCalls(
            self._addresses,
            timeout_s=timeout_s,
            retries=retries,
            credential=credential,
            urgency=Urgency().changed(deadline_ms, tier),
            clock=clock,
            jitter=jitter,
        )
        self._provider = token_provider
        self._renewing = anyio.Lock()
        self._clock = clock
        self._sleep = sleep
        self._lanes = lanes_of(httpx.AsyncClient, transport, self._addresses, event_loop, ca_file)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._addresses.scoring_url)!r})"

    async def aclose(self) -> None:
        """Close the connections."""
        for http in self._lanes.taken_down():
            await http.aclose()

    async def score(
        self,
        rows: Rows,
        *,
        deadline_ms: float | None = None,
        tier: Tier | None = None,
        **sequence: Unpack[SequenceOptions],
    ) -> Answer:
        """Score rows in one request; see `Client.score`."""
        urgency = self._calls.urgency(deadline_ms, tier, **sequence)
        return await self._drive(self._calls.score_rows(rows, urgency))

    async def infer(
        self,
        inputs: Mapping[str, npt.ArrayLike],
        outputs: Sequence[str] | None = None,
        *,
        deadline_ms: float | None = None,
        tier: Tier | None = None,
        **sequence: Unpack[SequenceOptions],
    ) -> dict[str, npt.NDArray[Any]]:
        """Send named tensors and return the model's outputs; see `Client.infer`."""
        urgency = self._calls.urgency(deadline_ms, tier, **sequence)
        return await self._drive(self._calls.infer(inputs, outputs, urgency))

    async def score_json(
        self, body: object, *, deadline_ms: float | None = None, tier: Tier | None = None
    ) -> Json:
        """Post any JSON body and return the plain JSON answer; see `Client.score_json`."""
        return await self._drive(self._calls.score(body, self._calls.urgency(deadline_ms, tier)))

    async def score_later(
        self, rows: Rows, *, idempotency_key: str | None = None, callback: str | None = None
    ) -> str:
        """Have the server score rows when it has time; see `Client.score_later`."""
        return await self._drive(self._calls.score_later(rows, idempotency_key, callback))

    async def fetch(self, location: str, *, timeout_s: float | None = None) -> Answer:
        """Wait for the answer to `score_later`, and return it; see `Client.fetch`."""
        return await self._drive(self._calls.fetch(location, timeout_s))

    def stream(
        self,
        body: object,
        *,
        events: bool = False,
        deadline_ms: float | None = None,
        tier: Tier | None = None,
        **sequence: Unpack[SequenceOptions],
    ) -> AsyncPieces:
        """Post any JSON body to an entry script that yields, and iterate over the pieces; see `Client.stream`.

        async with client.stream({"prompt": "once"}) as pieces:
            async for piece in pieces:
                print(piece["word"])
        """
        flow = pieces_of(self._calls, body, self._calls.urgency(deadline_ms, tier, **sequence), events=events)
        return AsyncPieces(self._run(flow))

    async def score_many(
        self,
        rows: Rows,
        *,
        batch_rows: int = 256,
        concurrency: int = 8,
        progress: bool = False,
        deadline_ms: float | None = None,
        tier: Tier | None = None,
    ) -> Answer:
        """Score many rows in several requests; see `Client.score_many`. An error cancels the others."""
        with Gathering.of_rows(rows, batch_rows, progress=progress) as gathering:
            await self._gather(gathering, concurrency, self._calls.urgency(deadline_ms, tier))
        return gathering.joined()

    async def score_batches(
        self,
        batches: Iterable[Rows],
        *,
        concurrency: int = 8,
        progress: bool = False,
        deadline_ms: float | None = None,
        tier: Tier | None = None,
    ) -> list[Answer]:
        """Score each batch in a request of its own; see `Client.score_batches`."""
        with Gathering.of_batches(batches, progress=progress) as gathering:
            await self._gather(gathering, concurrency, self._calls.urgency(deadline_ms, tier))
        return gathering.in_order()

    async def ready(self, timeout_s: float = PROBE_TIMEOUT_S) -> bool:
        """Ask once whether the server is ready to score; see `Client.ready`."""
        return await self._drive(self._calls.probe(timeout_s)) is None

    async def wait_until_ready(self, timeout_s: float = 60.0) -> None:
        """Wait until the server is ready to score; see `Client.wait_until_ready`."""
        await self._drive(self._calls.wait_until_ready(timeout_s))

    async def _gather(self, gathering: Gathering, concurrency: int, urgency: Urgency) -> None:
        check_concurrency(concurrency)
        failures: list[Exception] = []

        async def work() -> None:
            try:
                for batch in gathering:
                    await self._drive(gathering.flow(batch, self._calls, urgency))
            except Exception as error:  # noqa: BLE001  # raised again below, outside the group
                failures.append(error)
                workers.cancel_scope.cancel()

        async with anyio.create_task_group() as workers:
            for _ in range(concurrency):
                workers.start_soon(work)
        if failures:
            raise failures[0]

    async def _drive(self, flow: Flow[Result]) -> Result:
        async with AsyncOpened() as opened:
            try:
                step = next(flow)
                while True:
                    step = resumed(flow, await self._done(step, opened))
            except StopIteration as ended:
                return ended.value  # type: ignore[no-any-return]

    async def _run(self, flow: Flow[None]) -> AsyncGenerator[Json, None]:
        """Drive a flow, and yield its pieces."""
        with closing(flow):
            async with AsyncOpened() as opened:
                try:
                    step = next(flow)
                    while True:
                        if isinstance(step, Piece):
                            yield step.value
                            step = next(flow)
                        else:
                            step = resumed(flow, await self._done(step, opened))
                except StopIteration:
                    return

    async def _done(self, step: Step, opened: AsyncOpened) -> Outcome | Exception:
        """Do a step; return its result, or the exception that prevented it."""
        if isinstance(step, Pause):
            await self._sleep(step.duration_s)
            return None
        if isinstance(step, Renew):
            return await self._renew(step)
        try:
            if isinstance(step, Read):
                return await opened.read(step.timeout_s)
            assert isinstance(step, Send), "pieces are the caller's"
            if step.accept is None:
                return await self._exchange(step)
            return await opened.begin(step, self._lanes)
        except (httpx.RequestError, TimeoutError) as error:
            return error

    async def _renew(self, renew: Renew) -> Exception | None:
        """Renew the credential; return the exception that prevented it, or None."""
        credential = self._calls.credential
        try:
            async with self._renewing:
                # Another task may have done it while this one waited for the lock.
                if credential.text == renew.stale:
                    credential.replace(await self._provide(renew.timeout_s), self._clock())
        except Exception as error:  # noqa: BLE001  # the flow raises it, unless it can go on without
            return error
        return None

    async def _provide(self, timeout_s: float) -> str | AccessToken:
        if self._provider is None:
            return await self._drive(self._calls.fetch_token(self._key, timeout_s))
        given = self._provider()
        return await given if inspect.isawaitable(given) else given

    async def _exchange(self, send: Send) -> Reply:
        with self._lanes.lane() as http, anyio.fail_after(send.timeout_s):
            response = await http.send(send.request(http))
        return Reply(response.status_code, response.content, response.headers)
