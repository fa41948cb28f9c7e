"""The client for ordinary code: every call blocks until its answer is there."""

from __future__ import annotations

import random
import threading
import time
from contextlib import closing
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Self, Unpack

import httpx

from stoker_client.addresses import Addresses
from stoker_client.answers import Answer, Json
from stoker_client.bearer import credentials
from stoker_client.flow import PROBE_TIMEOUT_S, ServiceCalls
from stoker_client.gathering import Gathering, check_concurrency
from stoker_client.lanes import lanes_of
from stoker_client.opened import Opened, exchanged
from stoker_client.pieces import Pieces, pieces_of
from stoker_client.steps import Flow, Outcome, Pause, Piece, Read, Renew, Result, Send, Step, resumed
from stoker_client.urgency import Tier, Urgency

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

    import numpy.typing as npt

    from stoker_client.bearer import TokenProvider
    from stoker_client.bodies import Rows
    from stoker_client.sequences import SequenceOptions

__all__ = ["Client"]


class Client:
    """Scores rows with one service of a Stoker server; safe to share between threads, and with forked processes.

    Connections are kept and used again, so make one client and keep it, as a context manager or until `close`.

    Args:
        scoring_uri: The scoring URI, such as `http://127.0.0.1:8080/score` or
            `http://127.0.0.1:8080/api/v1/service/NAME/score`; or those of several servers of one service, which
            differ in host and port only. Each request goes to the server with the fewest in flight, and at once to
            another one if it is unreachable or overloaded; that server is then avoided for a while.
        key: The service's primary or secondary key, or a token; None for the variable STOKER_KEY, or else no key.
        use_tokens: Fetch short-lived tokens from the service with the key, and send those instead of it.
        token_provider: Returns the credential instead of the key: a text, or an `AccessToken` with the time of the
            next renewal. It is called before the first request, at that time, and once after an answer 401, by one
            thread at a time. Its exceptions are raised by the call, unless there is a token that may still be valid.
        timeout_s: Seconds for a call, with all attempts and pauses between them.
        retries: How often a request is sent again after the first attempt, when the connection fails or the
            server answers 429 or 503; each further server may be tried once besides. Pauses double from 0.1 s up to
            5 s, vary at random by up to a half, and are never shorter than the server's `retry-after-ms` or
            Retry-After. Scoring changes nothing on the server, so sending again is safe.
        deadline_ms: The default time in milliseconds after which an answer is useless. Each attempt sends the rest to
            the server, which refuses or drops requests that would be too late; the call ends by then, or by
            `timeout_s` if that is earlier.
        tier: The default tier: `high`, `normal` or `low`.
        ca_file: PEM file of trusted certificate authorities; None for SSL_CERT_FILE, else the public ones.
        transport: The httpx transport to send through, such as a Unix socket or a mock. By default each request in
            flight has a connection, and the environment's proxies are used, except to this machine's own loopback.
        clock: Monotonic time in seconds.
        sleep: Waits that many seconds between attempts.
        jitter: Random numbers in [0, 1) that spread the pauses.

    Raises:
        ValueError: An argument is out of range, contradicts another, is no absolute URI, or cannot stand in a header.
        OSError: `ca_file` cannot be read, or holds no certificate.
    """

    def __init__(
        self,
        scoring_uri: str | Sequence[str],
        key: str | None = None,
        *,
        use_tokens: bool = False,
        token_provider: TokenProvider | None = None,
        timeout_s: float = 60.0,
        retries: int = 6,
        deadline_ms: float | None = None,
        tier: Tier | None = None,
        ca_file: str | Path | None = None,
        transport: httpx.BaseTransport | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] | None = None,
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
        self._provider, self._renewing = token_provider, threading.Lock()
        self._clock, self._sleep = clock, sleep
        self._closed = threading.Event()
        self._lanes = lanes_of(httpx.Client, transport, self._addresses, ca_file=ca_file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._addresses.scoring_url)!r})"

    def close(self) -> None:
        """Close the connections; calls that wait for their next attempt in other threads end."""
        self._closed.set()
        for http in self._lanes.taken_down():
            http.close()

    def score(
        self,
        rows: Rows,
        *,
        deadline_ms: float | None = None,
        tier: Tier | None = None,
        **sequence: Unpack[SequenceOptions],
    ) -> Answer:
        """Score rows in one request.

        Args:
            rows: Shape (rows, ...): a float, int, bool or text array with the rows along its first axis,
                anything numpy makes such an array of, or a list of rows. A single row still needs that axis:
                `image[None]`. Arrays of 16 KiB or more are sent as binary data where the server takes them and the
                answer is the same as for JSON.
            deadline_ms: After which time an answer is useless; by default the client's.
            tier: The requested tier; by default the client's.
            **sequence: For a model with state `sequence_id`, `sequence_start` and `sequence_end`.

        Returns:
            One entry a row: an array where the answer is numeric and rectangular, in the dtype that the model
            declares (a float32 model gives float32), a dict of arrays by output name where the model has several
            outputs, else the plain JSON. Where the server does not describe the model, or it is an entry script
            that takes whole bodies, arrays are int64, float64 or bool.

        Raises:
            InvalidRows: A number is not finite, or a value has no JSON form; nothing was sent.
            Unauthorized: The key is wrong or missing; not retried.
            InvalidInput: The rows do not fit the model.
            StokerClientError: Any other error of the tree in `stoker_client.errors`.
        """
        urgency = self._calls.urgency(deadline_ms, tier, **sequence)
        return self._drive(self._calls.score_rows(rows, urgency), self._closed)

    def infer(
        self,
        inputs: Mapping[str, npt.ArrayLike],
        outputs: Sequence[str] | None = None,
        *,
        deadline_ms: float | None = None,
        tier: Tier | None = None,
        **sequence: Unpack[SequenceOptions],
    ) -> dict[str, npt.NDArray[Any]]:
        """Send named tensors as binary data, by the Open Inference Protocol v2, and return those that come back.

        Args:
            inputs: Arrays by input name. They are cast to the model's datatypes if that changes no kind: floats and
                integers become floats, integers become other integers that hold them. Strings are arrays of `str` or
                `bytes`. NaN and infinities are sent unchanged.
            outputs: The requested outputs; all by default.
            deadline_ms: After which time an answer is useless; by default the client's.
            tier: The requested tier; by default the client's.
            **sequence: For a model with state `sequence_id`, `sequence_start` and `sequence_end`.

        Returns:
            Arrays by the names of the outputs, in the model's datatypes (FP32 is float32); strings are `object`
            arrays of `bytes`.

        Raises:
            InvalidRows: An input is unknown, or holds what does not become the model's datatype; nothing was sent.
            InvalidInput: An input is missing or has another shape; status 400.
            ValueError: The scoring URI names no model, and the server has several.
            StokerClientError: Any other error of the tree in `stoker_client.errors`.
        """
        urgency = self._calls.urgency(deadline_ms, tier, **sequence)
        return self._drive(self._calls.infer(inputs, outputs, urgency), self._closed)

    def score_json(self, body: object, *, deadline_ms: float | None = None, tier: Tier | None = None) -> Json:
        """Post any JSON body, for entry scripts that read more than `data`, and return the plain JSON answer.

        Args:
            body: Any JSON value, which may contain numpy arrays.
            deadline_ms: After which time an answer is useless; by default the client's.
            tier: The requested tier; by default the client's.

        Raises:
            StokerClientError: As `score`.
        """
        return self._drive(self._calls.score(body, self._calls.urgency(deadline_ms, tier)), self._closed)

    def score_later(
        self, rows: Rows, *, idempotency_key: str | None = None, callback: str | None = None
    ) -> str:
        """Have the server score rows when it has time, and return the URL at which `fetch` gets the answer.

        The server keeps the request on disk, and runs it at least once. It needs `--later-mb`.

        Args:
            rows: As for `score`; sent as JSON.
            idempotency_key: The same key and rows mean the same request; random by default.
            callback: A URL that the server tells when the answer is there.

        Raises:
            UnexpectedAnswer: The server answers at once only.
            ValueError: The client has several servers.
            StokerClientError: As `score`.
        """
        return self._drive(self._calls.score_later(rows, idempotency_key, callback), self._closed)

    def fetch(self, location: str, *, timeout_s: float | None = None) -> Answer:
        """Wait for the answer to `score_later`, and return it.

        Args:
            location: What `score_later` has returned.
            timeout_s: Seconds to wait; by default the client's.

        Returns:
            What `score` would have returned.

        Raises:
            TimedOut: The answer is not there yet.
            AnswerExpired: The server keeps it no more.
            StokerClientError: As `score`.
        """
        return self._drive(self._calls.fetch(location, timeout_s), self._closed)

    def stream(
        self,
        body: object,
        *,
        events: bool = False,
        deadline_ms: float | None = None,
        tier: Tier | None = None,
        **sequence: Unpack[SequenceOptions],
    ) -> Pieces:
        """Post any JSON body to an entry script that yields, and iterate over the pieces when they are there.

            with client.stream({"prompt": "once"}) as pieces:
                for piece in pieces:
                    print(piece["word"])

        Args:
            body: Any JSON value, which may contain numpy arrays.
            events: Request server-sent events, which distinguish an error after pieces from any last piece.
            deadline_ms: After which time the first piece is useless; by default the client's.
            tier: The requested tier; by default the client's.
            **sequence: As of `score`, for a script with state.

        Returns:
            An iterator over plain JSON; an answer without pieces is one. The request is sent when the first is asked
            for; what fails behind it is not tried again. `timeout_s` is for the first piece, and anew for each.

        Raises:
            ValueError: The deadline is not above 0, there is no such tier, or the sequence cannot be.
        """
        flow = pieces_of(self._calls, body, self._calls.urgency(deadline_ms, tier, **sequence), events=events)
        return Pieces(self._run(flow, self._closed))

    def score_many(
        self,
        rows: Rows,
        *,
        batch_rows: int = 256,
        concurrency: int = 8,
        progress: bool = False,
        deadline_ms: float | None = None,
        tier: Tier | None = None,
    ) -> Answer:
        """Score many rows in several requests, some of them at the same time.

        Args:
            rows: Shape (rows, ...), as for `score`.
            batch_rows: Rows per request; the last one may have fewer.
            concurrency: Maximum requests in flight, each on a connection and in a thread of its own.
            progress: Show a progress bar if standard error is a terminal.
            deadline_ms: As for `score`, for each request.
            tier: As for `score`.

        Returns:
            What `score(rows)` would: one entry a row, in the order of the rows.

        Raises:
            UnexpectedAnswer: The model does not answer with one entry a row.
            StokerClientError: As `score`, with a note that names the rows. The first error ends the call: no
                further request is sent, and the answers to those in flight are ignored.
        """
        with Gathering.of_rows(rows, batch_rows, progress=progress) as gathering:
            self._gather(gathering, concurrency, self._calls.urgency(deadline_ms, tier))
        return gathering.joined()

    def score_batches(
        self,
        batches: Iterable[Rows],
        *,
        concurrency: int = 8,
        progress: bool = False,
        deadline_ms: float | None = None,
        tier: Tier | None = None,
    ) -> list[Answer]:
        """Score batches that the caller made, each in a request of its own.

        Args:
            batches: Batches of rows, drawn one by one as requests end, so a generator need not hold them all; it is
                drawn from in several threads, one at a time.
            concurrency: Maximum requests in flight.
            progress: Show a progress bar if standard error is a terminal.
            deadline_ms: As for `score`, for each request.
            tier: As for `score`.

        Returns:
            One answer a batch, in the order of the batches.

        Raises:
            StokerClientError: As `score_many`.
        """
        with Gathering.of_batches(batches, progress=progress) as gathering:
            self._gather(gathering, concurrency, self._calls.urgency(deadline_ms, tier))
        return gathering.in_order()

    def ready(self, timeout_s: float = PROBE_TIMEOUT_S) -> bool:
        """Ask once whether the server is ready to score; a server that cannot be reached is not.

        Raises:
            StokerClientError: Something else answers at this address.
        """
        return self._drive(self._calls.probe(timeout_s), self._closed) is None

    def wait_until_ready(self, timeout_s: float = 60.0) -> None:
        """Wait until the server is ready to score.

        Raises:
            TimedOut: It was not within the time; the message says what spoke against it last.
            StokerClientError: Something else answers at this address.
        """
        self._drive(self._calls.wait_until_ready(timeout_s), self._closed)

    def _gather(self, gathering: Gathering, concurrency: int, urgency: Urgency) -> None:
        check_concurrency(concurrency)
        stop = threading.Event()
        outcomes: SimpleQueue[BaseException | None] = SimpleQueue()

        def work() -> None:
            try:
                for batch in gathering:
                    self._drive(gathering.flow(batch, self._calls, urgency), stop)
            except BaseException as error:  # noqa: BLE001  # raised again by the thread that waits
                outcomes.put(error)
            else:
                outcomes.put(None)

        # Daemons, so that Ctrl-C need not wait for requests in flight, however long the server takes.
        for number in range(concurrency):
            threading.Thread(target=work, name=f"stoker-client-{number}", daemon=True).start()
        try:
            for _ in range(concurrency):
                failure = outcomes.get()
                if failure is not None:
                    raise failure
        finally:
            stop.set()

    def _drive(self, flow: Flow[Result], stop: threading.Event) -> Result:
        try:
            next(self._run(flow, stop))
        except StopIteration as ended:
            return ended.value  # type: ignore[no-any-return]
        raise AssertionError("only answers that come in pieces have pieces")

    def _run(self, flow: Flow[Result], stop: threading.Event) -> Generator[Json, None, Result]:
        """Drive a flow to its result; yields the pieces that it has before."""
        with closing(flow), Opened() as opened:
            try:
                step = next(flow)
                while not stop.is_set():
                    if isinstance(step, Piece):
                        yield step.value
                        step = next(flow)
                    else:
                        step = resumed(flow, self._done(step, stop, opened))
                raise RuntimeError("the client was closed")
            except StopIteration as ended:
                return ended.value  # type: ignore[no-any-return]

    def _done(self, step: Step, stop: threading.Event, opened: Opened) -> Outcome | Exception:
        """Do a step; return its result, or the exception that prevented it."""
        if isinstance(step, Pause):
            (self._sleep or stop.wait)(step.duration_s)
            return None
        if isinstance(step, Renew):
            return self._renew(step, stop)
        try:
            if isinstance(step, Read):
                return opened.read(step.timeout_s)
            assert isinstance(step, Send), "pieces are the caller's"
            if step.accept is not None:
                return opened.begin(step, self._lanes)
            return exchanged(step, self._lanes, self._clock)
        except (httpx.RequestError, TimeoutError) as error:
            return error

    def _renew(self, renew: Renew, stop: threading.Event) -> Exception | None:
        """Renew the credential; return the exception that prevented it, or None."""
        credential = self._calls.credential
        try:
            with self._renewing:
                # Another thread may have done it while this one waited for the lock.
                if credential.text == renew.stale:
                    if self._provider is not None:
                        given = self._provider()
                    else:
                        given = self._drive(self._calls.fetch_token(self._key, renew.timeout_s), stop)
                    credential.replace(given, self._clock())
        except Exception as error:  # noqa: BLE001  # the flow raises it, unless it can go on without
            return error
        return None
