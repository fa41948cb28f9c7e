"""The calls to a service without I/O: flows of the steps in `stoker_client.steps`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, Unpack
from urllib.parse import quote
from uuid import uuid4

import httpx
import numpy as np
import numpy.typing as npt

from stoker_client.addresses import Addresses
from stoker_client.answers import Answer, Json, Reply, as_arrays, decode_json, holds_arrays
from stoker_client.attempts import read, sent, was_lost, was_refused
from stoker_client.bearer import AccessToken, Credential
from stoker_client.bodies import Rows, encode_json, refuse_masked
from stoker_client.errors import (
    ConnectionFailed,
    ErrorAnswer,
    InvalidInput,
    InvalidRows,
    MalformedBody,
    NotFound,
    RequestRefused,
    StokerClientError,
    TimedOut,
    Unauthorized,
    Unavailable,
    UnexpectedAnswer,
)
from stoker_client.sequences import SequenceOptions, sequence_text
from stoker_client.servers import Servers
from stoker_client.steps import Flow, Pause, Renew, Send
from stoker_client.tensors import (
    ModelTensors,
    declare_dtypes,
    decode_outputs,
    decode_scores,
    encode_inputs,
    exact_rows,
)
from stoker_client.urgency import Tier, Urgency

__all__ = ["ServiceCalls"]

FIRST_BACKOFF_S = 0.1
LAST_BACKOFF_S = 5.0
PROBE_TIMEOUT_S = 5.0
SHORTEST_ATTEMPT_S = 0.001
FIRST_POLL_S = 0.05
LAST_POLL_S = 1.0
BINARY_BYTES = 1 << 14
"""Arrays from this size on are scored as binary data: below it, JSON costs next to nothing."""


class ServiceCalls:
    """The calls that a client makes to one service, as flows.

    Args:
        timeout_s: Seconds within which a call has to be answered, all attempts and pauses included.
        retries: How often a call may be sent again after its first attempt.
        credential: The credential of requests.
        urgency: The default urgency of requests.
        clock: Monotonic time in seconds.
        jitter: Random numbers in [0, 1).

    Raises:
        ValueError: A URI has another path than the first, or a number is out of range.
    """

    def __init__(
        self,
        addresses: Addresses,
        *,
        timeout_s: float,
        retries: int,
        credential: Credential,
        urgency: Urgency,
        clock: Callable[[], float],
        jitter: Callable[[], float],
    ) -> None:
        self._servers = Servers(addresses.urls, clock)
        self._addresses = addresses
        if not timeout_s > 0:
            raise ValueError(f"timeout_s has to be above 0, not {timeout_s}")
        if retries < 0:
            raise ValueError(f"retries has to be 0 or more, not {retries}")
        self._timeout_s = timeout_s
        self._retries = retries
        self.credential = credential
        self._urgency = urgency
        self._clock = clock
        self._jitter = jitter
        self._model: ModelTensors | None = None
        self._is_undescribed = False

    def urgency(
        self, deadline_ms: float | None, tier: Tier | None, **options: Unpack[SequenceOptions]
    ) -> Urgency:
        """Return the urgency of a call, with the client's defaults."""
        sequence, urgency = sequence_text(**options), self._urgency.changed(deadline_ms, tier)
        if sequence and len(self._servers) > 1:
            raise ValueError("a sequence is with one server: make the client with one scoring URI")
        return replace(urgency, sequence=sequence) if sequence else urgency

    def score(self, body: object, urgency: Urgency, timeout_s: float | None = None) -> Flow[Json]:
        """Post a JSON body to the scoring URI and return the plain JSON of the answer.

        Raises:
            StokerClientError: Any error of the tree in `stoker_client.errors`.
        """
        limit_s = timeout_s or urgency.within(self._timeout_s)
        send = Send("POST", self._addresses.scoring_url, limit_s, encode_json(body), urgency=urgency)
        reply = yield from self.exchange(send, self.credential)
        return decode_json(reply)

    def score_later(self, rows: Rows, idempotency_key: str | None, callback: str | None) -> Flow[str]:
        """Have rows scored later (decision 60), and return the location of the answer.

        Raises:
            StokerClientError: As `score`; UnexpectedAnswer if the server has answered at once.
        """
        if len(self._servers) > 1:
            raise ValueError("an answer later is with one server: make the client with one scoring URI")
        refuse_masked(rows)
        # Sending again must not score again.
        headers = [("Prefer", "respond-async"), ("Idempotency-Key", idempotency_key or uuid4().hex)]
        if callback is not None:
            headers.append(("Stoker-Callback", callback))
        url, body = self._addresses.scoring_url, encode_json({"data": rows})
        reply = yield from self.exchange(
            Send("POST", url, self._timeout_s, body, more_headers=tuple(headers)), self.credential
        )
        location = reply.headers.get("location")
        if reply.status != httpx.codes.ACCEPTED or location is None:
            raise UnexpectedAnswer(
                "the server answers at once; start it with --later-mb to have it answer later",
                status=reply.status,
            )
        return str(url.join(location))

    def fetch(self, location: str, timeout_s: float | None) -> Flow[Answer]:
        """Wait for the answer at a location, and return it.

        Raises:
            TimedOut: It was not there in time.
            StokerClientError: As `score`.
        """
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        give_up_at_s = self._clock() + limit_s
        # The key goes to the service's own server only.
        path = httpx.URL(location).raw_path
        url = self._addresses.scoring_url.copy_with(raw_path=path)
        poll_s = FIRST_POLL_S
        while True:
            send = Send("GET", url, self._left_s(give_up_at_s))
            reply = yield from self.exchange(send, self.credential)
            if reply.status != httpx.codes.ACCEPTED:
                return (yield from self._declare_dtypes(as_arrays(decode_json(reply)), give_up_at_s))
            if self._clock() + poll_s >= give_up_at_s:
                raise TimedOut(f"there was no answer at {location} within {limit_s:g} s; fetch it later")
            yield Pause(poll_s)
            poll_s = min(2 * poll_s, LAST_POLL_S)

    def open(self, body: object, urgency: Urgency, accept: str) -> Flow[Reply]:
        """Post a JSON body to the scoring URI, and return the reply when it begins; `read` returns its content."""
        limit_s = urgency.within(self._timeout_s)
        send = Send(
            "POST", self._addresses.scoring_url, limit_s, encode_json(body), urgency=urgency, accept=accept
        )
        return (yield from self.exchange(send, self.credential))

    def read(self) -> Flow[bytes]:
        """Return more of the reply that `open` has returned, none at its end.

        Raises:
            StokerClientError: None has come within the time for a call, or the connection was lost.
        """
        return (yield from read(self._addresses.origins, self._timeout_s))

    def score_rows(self, rows: Rows, urgency: Urgency) -> Flow[Answer]:
        """Score rows: large arrays as binary data where the server takes them, all else as JSON.

        Raises:
            StokerClientError: As `score`.
        """
        refuse_masked(rows)
        give_up_at_s = self._clock() + urgency.within(self._timeout_s)
        if not isinstance(rows, np.ndarray) or rows.nbytes < BINARY_BYTES:
            answer = as_arrays((yield from self.score({"data": rows}, urgency)))
            return (yield from self._declare_dtypes(answer, give_up_at_s))
        reply = yield from self._score_binary(rows, urgency, give_up_at_s)
        if reply is not None:
            return decode_scores(reply)
        answer = as_arrays((yield from self.score({"data": rows}, urgency, self._left_s(give_up_at_s))))
        return answer if self._model is None else declare_dtypes(self._model, answer)

    def _score_binary(
        self, rows: npt.NDArray[Any], urgency: Urgency, give_up_at_s: float
    ) -> Flow[Reply | None]:
        """Return the reply to rows as binary data; None if they must be sent as JSON."""
        model = yield from self._known_model(give_up_at_s)
        encoded = None if model is None else exact_rows(model, rows)
        if model is None or encoded is None:
            return None
        send = self._infer_send(model, encoded, urgency, give_up_at_s)
        try:
            return (yield from self.exchange(send, self.credential))
        except (InvalidInput, MalformedBody, NotFound):
            # The model may have become another one.
            self._model = None
            return None

    def _declare_dtypes(self, answer: Answer, give_up_at_s: float) -> Flow[Answer]:
        """Return an answer read from JSON in the dtypes that the model declares, where the server describes it."""
        if not holds_arrays(answer):
            return answer
        model = yield from self._known_model(give_up_at_s)
        return answer if model is None else declare_dtypes(model, answer)

    def _known_model(self, give_up_at_s: float) -> Flow[ModelTensors | None]:
        """Return the model's tensors, which the server is asked for once; None if it does not describe them now."""
        if self._model is not None or self._is_undescribed:
            return self._model
        try:
            # One attempt: scoring does not wait for a description that it can do without.
            return (yield from self._describe(self._ask_once, give_up_at_s))
        except (ValueError, RequestRefused, UnexpectedAnswer):
            # The URI names none of several models, the model has no tensors, or the server lacks these paths.
            self._is_undescribed = True
        except StokerClientError:
            pass
        return None

    def infer(
        self, inputs: Mapping[str, npt.ArrayLike], outputs: Sequence[str] | None, urgency: Urgency
    ) -> Flow[dict[str, npt.NDArray[Any]]]:
        """Send named tensors as binary data and return the outputs."""
        give_up_at_s = self._clock() + urgency.within(self._timeout_s)
        model = self._model or (yield from self._describe(self._ask, give_up_at_s))
        send = self._infer_send(model, encode_inputs(model, inputs, outputs), urgency, give_up_at_s)
        try:
            reply = yield from self.exchange(send, self.credential)
        except ErrorAnswer:
            self._model = None
            raise
        return decode_outputs(reply)

    def _infer_send(
        self, model: ModelTensors, encoded: tuple[bytes, int], urgency: Urgency, give_up_at_s: float
    ) -> Send:
        url = self._addresses.v2(f"models/{quote(model.model, safe='')}/infer")
        body, json_bytes = encoded
        left_s = self._left_s(give_up_at_s)
        return Send("POST", url, left_s, body, json_bytes=json_bytes, urgency=urgency)

    def _describe(self, ask: Callable[[Send], Flow[Reply]], give_up_at_s: float) -> Flow[ModelTensors]:
        """Have the server describe the model's tensors, and keep that.

        Raises:
            ValueError: The scoring URI does not say which model it is, and the server has several.
            InvalidRows: The model has no tensors: it is an entry script that takes whole bodies.
            StokerClientError: As `score`.
        """
        name = self._addresses.model
        if name is None:
            reply = yield from ask(Send("GET", self._addresses.v2("models"), self._left_s(give_up_at_s)))
            name = _only_model(reply)
        url = self._addresses.v2(f"models/{quote(name, safe='')}")
        model = ModelTensors.of((yield from ask(Send("GET", url, self._left_s(give_up_at_s)))))
        if not model.inputs:
            raise InvalidRows(f"{name} takes whole bodies, or is not loaded yet; it has no tensors to name")
        self._model = model
        return model

    def _ask(self, send: Send) -> Flow[Reply]:
        return self.exchange(send, self.credential)

    def _ask_once(self, send: Send) -> Flow[Reply]:
        limit_s = min(send.timeout_s, PROBE_TIMEOUT_S)
        outcome = yield from self._attempt(
            replace(send, timeout_s=limit_s, bearer=self.credential.text), limit_s
        )
        if isinstance(outcome, Reply):
            return outcome
        raise outcome

    def fetch_token(self, key: Credential, timeout_s: float) -> Flow[AccessToken]:
        """Have the service hand out a token.

        Raises:
            StokerClientError: As `score`; Unauthorized if the key is none of the service's.
        """
        url = self._addresses.token
        reply = yield from self.exchange(Send("GET", url, timeout_s), key)
        given = decode_json(reply)
        try:
            return AccessToken(str(given["accessToken"]), float(given["refreshInSeconds"]))
        except (TypeError, KeyError, ValueError) as error:
            raise UnexpectedAnswer(f"{url} did not answer with a token") from error

    def exchange(self, send: Send, credential: Credential) -> Flow[Reply]:
        """Send a request until a reply is successful, as often and as long as the limits allow.

        Sending again is safe because scoring changes nothing on the server; a request of a sequence is not sent again
        if it may have been run. After 429 and 503 the server's Retry-After is the shortest pause, unless there is
        another server to ask. The last error is raised at once if the next attempt would come too late. A refused
        credential is renewed once, if possible, and the request sent again at once.
        """
        give_up_at_s = self._clock() + send.timeout_s
        losses = renewals = 0
        for attempt in count(1):
            yield from self._renew_in_time(credential, give_up_at_s)
            left_s = self._left_s(give_up_at_s)
            bearer = credential.text
            outcome = yield from self._attempt(replace(send, timeout_s=left_s, bearer=bearer), send.timeout_s)
            if isinstance(outcome, Reply):
                return outcome
            outcome.attempts = attempt
            if isinstance(outcome, Unauthorized) and credential.renewable and not renewals:
                renewals = 1
                yield Renew(bearer, self._left_s(give_up_at_s))
                continue
            losses += was_lost(outcome)
            # The first loss is nearly always a kept-alive connection that the server closed as idle at this
            # very moment: there is nothing to wait for.
            at_once = losses == 1 and was_lost(outcome)
            elsewhere = was_refused(outcome) and self._servers.has_ready()
            pause_s = 0.0 if at_once or elsewhere else self._pause_s(attempt - renewals, outcome)
            too_often = attempt - renewals > self._retries + len(self._servers) - 1
            # State changes with each row that was run, and nobody knows whether this one was (decision 38).
            unsure = send.urgency is not None and send.urgency.sequence and was_lost(outcome)
            if unsure or not outcome.retried or too_often or self._clock() + pause_s >= give_up_at_s:
                raise outcome
            yield Pause(pause_s)
        raise AssertionError("count() has no end")

    def _renew_in_time(self, credential: Credential, give_up_at_s: float) -> Flow[None]:
        """Have a credential, and another one before the present one is refused."""
        if not credential.is_due(self._clock()):
            return
        stale = credential.text
        try:
            yield Renew(stale, self._left_s(give_up_at_s))
        except Exception as error:
            if stale is None:
                raise
            credential.postpone(self._clock(), error)

    def _left_s(self, give_up_at_s: float) -> float:
        return max(give_up_at_s - self._clock(), SHORTEST_ATTEMPT_S)

    def probe(self, timeout_s: float = PROBE_TIMEOUT_S) -> Flow[StokerClientError | None]:
        """Ask each server once until one is ready; return the last one's error, None if one is ready."""
        send = Send("GET", self._addresses.v2("health/ready"), timeout_s, bearer=self.credential.text)
        spoke: StokerClientError | None = None
        for _ in range(len(self._servers)):
            outcome = yield from self._attempt(send, timeout_s)
            if isinstance(outcome, Reply):
                return None
            if not isinstance(outcome, ConnectionFailed | TimedOut | Unavailable):
                raise outcome
            spoke = outcome
        return spoke

    def wait_until_ready(self, timeout_s: float) -> Flow[None]:
        """Probe until the server is ready.

        Raises:
            TimedOut: It was not within the time; the cause says what spoke against it last.
            StokerClientError: The answer is none of a Stoker server's readiness endpoint.
        """
        give_up_at_s = self._clock() + timeout_s
        poll_s = FIRST_POLL_S
        while True:
            left_s = self._left_s(give_up_at_s)
            reason = yield from self.probe(min(left_s, PROBE_TIMEOUT_S))
            if reason is None:
                return
            if self._clock() + poll_s >= give_up_at_s:
                raise TimedOut(
                    f"{self._addresses.origins} was not ready within {timeout_s:g} s: {reason}"
                ) from reason
            yield Pause(poll_s)
            poll_s = min(2 * poll_s, LAST_POLL_S)

    def _attempt(self, send: Send, limit_s: float) -> Flow[Reply | StokerClientError]:
        """Send once, to one of the servers, within `limit_s`; failures are returned with their causes."""
        server = self._servers.take()
        held = False
        try:
            outcome = yield from sent(replace(send, url=server.at(send.url)), server.origin, limit_s)
            if send.accept is not None and isinstance(outcome, Reply):
                # It is in flight until its content has been read.
                outcome = replace(outcome, on_read=partial(self._servers.give_back, server))
                held = True
        finally:
            if not held:
                self._servers.give_back(server)
        if isinstance(outcome, Reply):
            self._servers.answered(server)
        elif was_refused(outcome):
            self._servers.set_aside(server, outcome.retry_after_s)
        return outcome

    def _pause_s(self, attempt: int, failure: StokerClientError) -> float:
        """Seconds before the next attempt: bounded, doubling, and spread so that callers disperse."""
        backoff_s = min(FIRST_BACKOFF_S * 2.0 ** min(attempt - 1, 30), LAST_BACKOFF_S)
        if failure.retry_after_s is not None:
            return failure.retry_after_s + self._jitter() * backoff_s
        return backoff_s * (0.5 + 0.5 * self._jitter())


def _only_model(reply: Reply) -> str:
    listed = decode_json(reply)
    names = listed.get("models") if isinstance(listed, dict) else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UnexpectedAnswer("the server did not list its models", status=reply.status)
    if len(names) != 1:
        raise ValueError(
            f"the scoring URI has to name one of the server's models: {', '.join(names) or 'none'}"
        )
    return str(names[0])
