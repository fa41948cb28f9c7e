"""The client for asynchronous code, on asyncio or trio."""

from __future__ import annotations

import inspect
import random
import time
from typing import TYPE_CHECKING, Any, Self

import anyio
import httpx

from stoker_client.answers import Answer, Json, Reply
from stoker_client.bearer import credentials
from stoker_client.flow import PROBE_TIMEOUT_S, ServiceCalls
from stoker_client.gathering import Gathering, check_concurrency
from stoker_client.lanes import Lanes, http_options
from stoker_client.steps import Flow, Pause, Renew, Result, Send

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    import numpy.typing as npt

    from stoker_client.bearer import AccessToken, AsyncTokenProvider
    from stoker_client.bodies import Rows

__all__ = ["AsyncClient"]


class AsyncClient:
    """Scores rows with one service of a Stoker server, without blocking the event loop while it waits.

    The arguments, answers and errors are those of `Client`; `timeout_s` is exact here, for a call that takes
    longer is cancelled.

    Args:
        scoring_uri: Where rows are posted to; several servers of one service, as for `Client`.
        key: The service's key, or a token; without one, the variable STOKER_KEY; without that, none is sent.
        use_tokens: Fetch short-lived tokens from the service with the key, and send those instead of it.
        token_provider: Gives what is to be sent, where it is not the key; it may be a coroutine function.
        timeout_s: Seconds within which a call has to be answered, all attempts and pauses included.
        retries: How often a request is sent again after the first attempt.
        transport: The httpx transport to send through.
        clock: Monotonic time in seconds.
        sleep: Waits that many seconds between attempts.
        jitter: Random numbers in [0, 1) that spread the pauses.

    Raises:
        ValueError: An argument is out of range or contradicts another, the URI is not absolute, or the key cannot
            stand in a header.
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
        transport: httpx.AsyncBaseTransport | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._key, credential = credentials(key, use_tokens=use_tokens, provided=token_provider is not None)
        self._calls = ServiceCalls(
            scoring_uri,
            timeout_s=timeout_s,
            retries=retries,
            credential=credential,
            use_tokens=use_tokens,
            clock=clock,
            jitter=jitter,
        )
        self._provider = token_provider
        self._renewing = anyio.Lock()
        self._clock = clock
        self._sleep = sleep
        self._lanes = self._make_lanes(http_options(on_loopback=self._calls.on_loopback), transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._calls.scoring_url)!r})"

    async def aclose(self) -> None:
        """Close the connections."""
        for http in self._lanes.taken_down():
            await http.aclose()

    async def score(self, rows: Rows) -> Answer:
        """Score rows in one request; see `Client.score`."""
        return await self._drive(self._calls.score_rows(rows))

    async def infer(
        self, inputs: Mapping[str, npt.ArrayLike], outputs: Sequence[str] | None = None
    ) -> dict[str, npt.NDArray[Any]]:
        """Send named tensors and return those that the model gives; see `Client.infer`."""
        return await self._drive(self._calls.infer(inputs, outputs))

    async def score_json(self, body: object) -> Json:
        """Post any JSON body and return the plain JSON answer; see `Client.score_json`."""
        return await self._drive(self._calls.score(body))

    async def score_many(
        self, rows: Rows, *, batch_rows: int = 256, concurrency: int = 8, progress: bool = False
    ) -> Answer:
        """Score many rows in several requests; see `Client.score_many`. An error cancels the others."""
        with Gathering.of_rows(rows, batch_rows, progress=progress) as gathering:
            await self._gather(gathering, concurrency)
        return gathering.joined()

    async def score_batches(
        self, batches: Iterable[Rows], *, concurrency: int = 8, progress: bool = False
    ) -> list[Answer]:
        """Score each batch in a request of its own; see `Client.score_batches`."""
        with Gathering.of_batches(batches, progress=progress) as gathering:
            await self._gather(gathering, concurrency)
        return gathering.in_order()

    async def ready(self, timeout_s: float = PROBE_TIMEOUT_S) -> bool:
        """Ask once whether the server is ready to score; see `Client.ready`."""
        return await self._drive(self._calls.probe(timeout_s)) is None

    async def wait_until_ready(self, timeout_s: float = 60.0) -> None:
        """Wait until the server is ready to score; see `Client.wait_until_ready`."""
        await self._drive(self._calls.wait_until_ready(timeout_s))

    @staticmethod
    def _make_lanes(
        options: dict[str, Any], transport: httpx.AsyncBaseTransport | None
    ) -> Lanes[httpx.AsyncClient]:
        if transport is not None:
            shared = httpx.AsyncClient(transport=transport, **options)
            return Lanes(lambda: shared)
        verify = httpx.create_ssl_context(trust_env=options["trust_env"])
        return Lanes(lambda: httpx.AsyncClient(verify=verify, **options))

    async def _gather(self, gathering: Gathering, concurrency: int) -> None:
        check_concurrency(concurrency)
        failures: list[Exception] = []

        async def work() -> None:
            try:
                for batch in gathering:
                    await self._drive(gathering.flow(batch, self._calls))
            except Exception as error:  # noqa: BLE001  # raised again below, outside the group
                failures.append(error)
                workers.cancel_scope.cancel()

        async with anyio.create_task_group() as workers:
            for _ in range(concurrency):
                workers.start_soon(work)
        if failures:
            raise failures[0]

    async def _drive(self, flow: Flow[Result]) -> Result:
        try:
            step = next(flow)
            while True:
                if isinstance(step, Pause):
                    await self._sleep(step.duration_s)
                    step = next(flow)
                    continue
                if isinstance(step, Renew):
                    failure = await self._renew(step)
                    step = next(flow) if failure is None else flow.throw(failure)
                    continue
                try:
                    reply = await self._exchange(step)
                except (httpx.RequestError, TimeoutError) as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(reply)
        except StopIteration as ended:
            return ended.value  # type: ignore[no-any-return]

    async def _renew(self, renew: Renew) -> Exception | None:
        """Renew the credential; return what came in the way."""
        credential = self._calls.credential
        try:
            async with self._renewing:
                # Whoever waited for the lock may find that another task has done it.
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
