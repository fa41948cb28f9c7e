"""Answers: replies of the server -> plain JSON, numpy arrays, or errors."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

import httpx
import numpy as np
import orjson

from stoker_client.errors import ErrorAnswer, UnexpectedAnswer, error_class

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "Answer",
    "Json",
    "Reply",
    "as_arrays",
    "decode_json",
    "error_behind",
    "error_of",
    "holds_arrays",
    "join_answers",
]

Json: TypeAlias = Any
"""Plain JSON. As with `httpx.Response.json`, its type is known to the caller alone."""

Answer: TypeAlias = Any
"""The model's answer: a `numpy.ndarray` with one entry a row where the server's list is numeric and
rectangular; a dict of such arrays by output name for a model with several outputs; else the plain JSON."""

_EXCERPT_CHARS = 200
_CODE = "x-stoker-error-code"
"""Where the code is that errors of other protocols than Azure's have no place for in their JSON."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply to one HTTP request.

    Attributes:
        content: The decoded body.
        on_read: Called when the content has been read completely, if it comes later.
    """

    status: int
    content: bytes = b""
    headers: httpx.Headers = field(default_factory=httpx.Headers)
    on_read: Callable[[], None] | None = None


def decode_json(reply: Reply) -> Json:
    """Return the JSON value of a successful reply; None for status 204, which has no body.

    Raises:
        UnexpectedAnswer: The reply is not JSON.
    """
    if reply.status == httpx.codes.NO_CONTENT:
        return None
    try:
        return orjson.loads(reply.content)
    except orjson.JSONDecodeError:
        pass
    # An entry script may answer NaN, which Python's json and Azure's server write as a bare token.
    try:
        return json.loads(reply.content)
    except ValueError as error:
        raise UnexpectedAnswer(
            f"the answer is not JSON: {_excerpt(reply)}",
            status=reply.status,
            request_id=reply.headers.get("x-ms-request-id"),
        ) from error


def error_of(reply: Reply) -> ErrorAnswer | UnexpectedAnswer | None:
    """Return the error of a reply, None for a success (status 2xx)."""
    request_id = reply.headers.get("x-ms-request-id")
    if 200 <= reply.status < 300:
        return None
    if reply.status < 400:
        target = reply.headers.get("location", "an address that it does not name")
        message = f"the server redirects to {target}; give the client that address if it is the right one"
        return UnexpectedAnswer(message, status=reply.status, request_id=request_id)
    message, code = _message_and_code(reply)
    return error_class(reply.status, code)(
        message,
        status=reply.status,
        code=code,
        request_id=request_id,
        retry_after_s=_retry_after_s(reply.headers),
    )


def error_behind(reply: Reply, last_piece: Json) -> ErrorAnswer:
    """Return the error, in JSON, that follows pieces of a reply which began as a success."""
    described = last_piece if isinstance(last_piece, dict) else {}
    message, code = described.get("message"), described.get("code")
    known = error_class(httpx.codes.INTERNAL_SERVER_ERROR, code if isinstance(code, str) else None)
    return known(
        message if isinstance(message, str) else "the server failed behind pieces of the answer",
        status=reply.status,
        code=code if isinstance(code, str) else None,
        request_id=reply.headers.get("x-ms-request-id"),
    )


def as_arrays(answer: Json) -> Answer:
    """Convert the numeric, rectangular lists of an answer to arrays: the answer itself, or an object's values.

    Returns:
        int64, uint64, float64 or bool arrays; other values unchanged.
    """
    if isinstance(answer, dict):
        return {name: _as_array(value) for name, value in answer.items()}
    return _as_array(answer)


def holds_arrays(answer: Answer) -> bool:
    """Return whether an answer is an array, or an object with one."""
    values = answer.values() if isinstance(answer, dict) else (answer,)
    return any(isinstance(value, np.ndarray) for value in values)


def join_answers(answers: Sequence[Answer], row_counts: Sequence[int]) -> Answer:
    """Join the answers of consecutive batches, as if all rows had been sent in one request.

    Args:
        answers: Answers by `as_arrays`, in the order of the batches.
        row_counts: The number of rows of each batch.

    Raises:
        UnexpectedAnswer: An answer does not have one entry per row, or the answers have different forms.
    """
    if not answers:
        return np.empty(0)
    first = answers[0]
    if isinstance(first, dict):
        if any(not isinstance(answer, dict) or answer.keys() != first.keys() for answer in answers):
            raise UnexpectedAnswer(
                "the answers to the batches name different outputs, so they cannot be joined"
            )
        return {name: _join([answer[name] for answer in answers], row_counts) for name in first}
    return _join(answers, row_counts)


def _join(answers: Sequence[Answer], row_counts: Sequence[int]) -> Answer:
    for answer, rows in zip(answers, row_counts, strict=True):
        entries = len(answer) if isinstance(answer, list | np.ndarray) else "no"
        if entries != rows:
            raise UnexpectedAnswer(
                f"a batch of {rows} rows was answered with {entries} entries, so the batches cannot be "
                "joined; use score_batches for a model that does not answer row by row"
            )
    if all(isinstance(answer, np.ndarray) for answer in answers) and len({a.shape[1:] for a in answers}) == 1:
        return np.concatenate(answers)
    return _as_array(list(chain.from_iterable(_as_list(answer) for answer in answers)))


def _as_list(answer: Answer) -> list[Json]:
    return answer.tolist() if isinstance(answer, np.ndarray) else answer  # type: ignore[no-any-return]


def _as_array(value: Json) -> Answer:
    first = value
    while isinstance(first, list) and first:
        first = first[0]
    if not isinstance(value, list) or not isinstance(first, int | float | list):
        return value
    try:
        array = np.array(value)
    except (ValueError, OverflowError):  # ragged, nested beyond numpy's limit, or too large a number
        return value
    return array if array.dtype.kind in "biuf" else value


def _message_and_code(reply: Reply) -> tuple[str, str | None]:
    try:
        body = orjson.loads(reply.content)
    except orjson.JSONDecodeError:
        body = None
    if isinstance(body, dict):
        message, code = body.get("message", body.get("error")), body.get("code")
        if isinstance(message, str):
            return message, code if isinstance(code, str) else reply.headers.get(_CODE)
    phrase = httpx.codes.get_reason_phrase(reply.status) or "error"
    return (f"{phrase}: {_excerpt(reply)}" if reply.content else phrase), None


def _excerpt(reply: Reply) -> str:
    text = " ".join(reply.content[: 4 * _EXCERPT_CHARS].decode(errors="replace").split())
    return text if len(text) <= _EXCERPT_CHARS else text[:_EXCERPT_CHARS] + "…"


def _retry_after_s(headers: httpx.Headers) -> float | None:
    """Return the pause of an overloaded server (decision 8); milliseconds win, because Retry-After is rounded up."""
    exact = headers.get("retry-after-ms", "").strip()
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", exact):
        return float(exact) / 1000
    value = headers.get("retry-after", "").strip()
    return int(value) if re.fullmatch(r"[0-9]{1,9}", value) else None
