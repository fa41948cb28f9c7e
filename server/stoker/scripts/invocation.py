"""A call of an entry script: a request becomes arguments, `run` is called, what it returns becomes an answer."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import json
import logging
import re
import secrets
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from typing import Any, Final, TypeVar

import numpy as np
import orjson

from stoker.errors import (
    DeadlineExceeded,
    MalformedBody,
    ModelFailed,
    RequestError,
    ScoringTimeout,
    StokerError,
    unexpected_error,
)
from stoker.script_form import ScriptForm
from stoker.scripts.arguments import (
    NO_HEAD,
    StateNotCopied,
    bind_form,
    failed_in_conversion,
    flask_context,
    request_headers,
    stand_ins,
    uses_flask,
)
from stoker.scripts.call_watchdog import Watchdog, call_contained
from stoker.scripts.coroutines import finish
from stoker.scripts.exits import contain
from stoker.system.logs import frames_of_script, requests_in_log
from stoker.wire.json_bodies import numpy_hint, plain_numbers
from stoker.wire.script_requests import ScriptAnswer, ScriptRequest
from stoker.wire.script_streams import CallerGone, PieceWriter

logger = logging.getLogger(__name__)


def encode_result(result: Any) -> bytes:
    """Return what `run` returned as JSON, as the Azure inference server does.

    `None` becomes `{}`; a string is encoded again even if it holds JSON; NaN and infinities become the
    tokens `NaN`, `Infinity` and `-Infinity`; numpy arrays and numbers become lists and numbers.

    Raises:
        TypeError: JSON cannot hold the result; the text is for the script's author.
    """
    return b"{}" if result is None else _dumped(result)


def encode_rows(rows: Sequence[Any]) -> list[bytes]:
    """Return each row of a batched result as compact JSON.

    Raises:
        TypeError: JSON cannot hold a row.
    """
    return [_encode_row(row) for row in rows]


def is_response(result: Any) -> bool:
    """Whether `run` returned a response: an `AMLResponse`, or one of Flask or Werkzeug."""
    return callable(getattr(result, "get_data", None)) and all(
        hasattr(result, name) for name in ("status_code", "headers")
    )


def response_answer(response: Any, exec_ns: int) -> ScriptAnswer:
    """Return a response as it goes to the caller."""
    return dataclasses.replace(stand_ins().answer_from(response), exec_ns=exec_ns)


def _encode_row(row: Any) -> bytes:
    try:
        text = orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:
        return _compact(row)
    # orjson writes what is not finite as null.
    return _compact(row) if b"null" in text else text


def _compact(row: Any) -> bytes:
    return _dumped(row, separators=(",", ":"))


def _dumped(value: Any, **options: Any) -> bytes:
    try:
        return json.dumps(value, default=_plain, **options).encode()
    except RecursionError:
        raise TypeError("run() returned a value that is nested too deeply for JSON") from None
    except ValueError as error:
        if "Circular" in str(error):
            flaw = "a value that contains itself"
        elif "integer string" in str(error):
            flaw = "an integer of more digits than Python writes"
        else:
            raise
        raise TypeError(f"run() returned {flaw}, which JSON cannot hold") from None


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"run() returned {type(value).__name__}, which JSON cannot hold")


# Scripts whose `run` yields: answers that are sent piece by piece, or gathered to one list for who wants that.


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
        watchdog: Ends what takes too long; None ends nothing.
    """

    def __init__(self, yielded: Any, watchdog: Watchdog | None) -> None:
        self._yielded = yielded
        self._watchdog = watchdog
        self._writer: PieceWriter | None = None

    def send(self, place: str, timeout_s: float) -> bool:
        """Send all pieces to a frontend, each when it is there.

        An asynchronous generator whose caller goes is cancelled where it awaits; another one is closed at its next
        piece, as nothing can be raised in code that waits for something else.

        Args:
            place: Where to, see `stoker.wire.script_streams`.
            timeout_s: How long the caller may take to read one.

        Returns:
            Whether the caller has waited for all of them; the generator is closed if not.

        Raises:
            Exception: What the script raised, or that a piece cannot be written; those before it have been sent.
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
            RequestError: There are others, or none; the text is Triton's.
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
        """The pieces as JSON."""
        while (piece := self._guarded(self._next)) is not _END:
            yield encode_result(piece)

    def _next(self) -> Any:
        if inspect.isgenerator(self._yielded):
            return next(self._yielded, _END)
        coming = anext(self._yielded, _END)
        return finish(coming if self._writer is None else self._writer.while_open(coming))

    def _close(self) -> None:
        if inspect.isgenerator(self._yielded):
            self._yielded.close()
        else:
            finish(self._yielded.aclose())

    def _guarded(self, function: Callable[[], Any]) -> Any:
        return call_contained(function, self._watchdog)


# Why a body is not JSON that a script can be expected to read.


_MAX_DEPTH: Final = 100
"""Arrays and objects inside each other that a body may have."""

# A string that is never closed runs to the end: brackets in it do not count.
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\Z|\\\Z)|[\[{]|[\]}]', re.DOTALL)


def json_fault(text: str) -> str | None:
    """Say where `text` stops being JSON; None if it is JSON.

    `NaN`, `Infinity` and `-Infinity` count as JSON, as Python's reader has it. Arrays nested more than
    `_MAX_DEPTH` deep and integers of more digits than Python converts (4300) do not.
    """
    deep = _too_deep(text)
    if deep is not None:
        return f"nested more than {_MAX_DEPTH} levels deep: {_place(text, deep)}"
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return f"{error}{numpy_hint(text, error.pos)}"
    except ValueError:
        return "an integer has too many digits"
    return None


def _too_deep(text: str) -> int | None:
    depth = 0
    for token in _TOKEN.finditer(text):
        first = token[0][0]
        if first in "[{":
            depth += 1
            if depth > _MAX_DEPTH:
                return token.start()
        elif first != '"':
            depth -= 1
    return None


def _place(text: str, position: int) -> str:
    error = json.JSONDecodeError("", text, position)
    return f"line {error.lineno} column {error.colno} (char {position})"


_Result = TypeVar("_Result")

_FIRST_FAILED: Final = 500
_PATIENCE_S: Final = 60.0
"""How long a caller may take to read a piece where nothing else is said."""


class ScriptCalls:
    """An initialised script, bound to the form of its `run`.

    `answer` does all of it for one request; those who batch put the same steps together in another way. Each
    step may be taken on any thread, by several threads at once if the script allows that. What is logged and
    printed belongs to the requests of `requests_in_log` that the step is taken in.
    """

    def __init__(
        self,
        run: Callable[..., Any],
        *,
        raw: bool = False,
        watchdog: Watchdog | None = None,
        apart: Collection[str] = (),
    ) -> None:
        """Bind a `run`.

        Args:
            raw: Whether `rawhttp` has decorated anything in this process.
        """
        self._run = run
        self._watchdog = watchdog
        self._form, self._with_headers = bind_form(run, raw=raw, apart=apart)
        described = self._form.described
        self.form: ScriptForm = dataclasses.replace(
            # A script that uses Flask may look at Flask's request.
            described,
            wants_head=described.wants_head or self._with_headers or uses_flask() or yields(run),
            yields=yields(run),
        )
        """How it is called, without a choice of batching."""

    @property
    def with_headers(self) -> bool:
        """Whether `run` gets `request_headers`."""
        return self._with_headers

    @property
    def wants_head(self) -> bool:
        """Whether requests need their head."""
        return self.form.wants_head

    def arguments(self, request: ScriptRequest) -> dict[str, Any]:
        """Return the keyword arguments that `run` gets for a request.

        Raises:
            RequestError: The request does not fit the form: 400, or 415 for another content type.
        """
        arguments = self._form.data(request)
        if self._with_headers:
            arguments["request_headers"] = request_headers(request.head)
        return arguments

    def invoke(self, arguments: dict[str, Any], request: ScriptRequest | None = None) -> Any:
        """Call `run`, and wait for its result if it is a coroutine.

        Args:
            request: What Flask's `request` is, for a script that uses Flask; None for no caller's request.

        Raises:
            RequestError: A schema decorator could not convert an argument.
            ScoringTimeout: It took too long and was interrupted.
            Exception: Whatever `run` raised; what is no Exception, such as `sys.exit()`, is a RuntimeError.
        """
        try:
            return self._guarded(lambda: self._call(arguments, request))
        except Exception as error:
            if self.form.kind == "schema" and failed_in_conversion(self._run, error):
                raise RequestError(str(error)) from error
            raise

    def encode(self, result: Any, exec_ns: int) -> ScriptAnswer:
        """Return what `run` returned as the answer; 500 if nobody could read it, which the log then says."""
        try:
            if is_response(result):
                return response_answer(result, exec_ns)
            return ScriptAnswer(contain(lambda: encode_result(result)), exec_ns=exec_ns)
        except Exception as error:  # noqa: BLE001  # a script's object may raise anything when it is looked at
            error_id = _log_failure("the result of run() cannot be sent", error)
            return _told(unexpected_error(error), failed=True, error_id=error_id)

    def refusal(self, error: BaseException, request: ScriptRequest) -> ScriptAnswer:
        """Return the answer for a request that failed; what the script is to blame for goes to the log."""
        if not isinstance(error, RequestError) and (fault := self._fault(error, request)):
            logger.warning("run() raised %s for a body that is not valid JSON", type(error).__name__)
            error = MalformedBody.not_json(fault)
        return refusal_of(error)

    def answer(
        self, request: ScriptRequest, more: Callable[[], Mapping[str, Any]] | None = None
    ) -> ScriptAnswer:
        """Score one request; never raises.

        Args:
            more: Makes the arguments that are not in it; None if there are none.
        """
        with requests_in_log(request.request_id):
            try:
                arguments = self.arguments(request)
                try:
                    if more is not None:
                        arguments.update(self._guarded(more))
                    begun_ns = time.perf_counter_ns()
                    result = self.invoke(arguments, request)
                    if self.form.yields and is_yielded(result):
                        return self._answer_yielded(result, request, begun_ns)
                    return self.encode(result, time.perf_counter_ns() - begun_ns)
                finally:
                    self._form.release(arguments)
            except Exception as error:  # noqa: BLE001  # told to the caller
                plain = self._with_plain_numbers(error, request)
                return self.refusal(error, request) if plain is None or more else self.answer(plain)

    def _answer_yielded(self, yielded: Any, request: ScriptRequest, begun_ns: int) -> ScriptAnswer:
        """Send what `run` yields to whoever waits for its pieces; or answer with its only one, or all as one list."""
        pieces = Pieces(yielded, self._watchdog)
        head = request.head or NO_HEAD
        body = b""
        with flask_context(head, request.body):
            if not head.stream:
                body = pieces.only() if head.only_piece else pieces.whole()
            else:
                patience_s = _PATIENCE_S if self._watchdog is None else self._watchdog.timeout_ms / 1000
                if not pieces.send(head.stream, patience_s):
                    return _told(DeadlineExceeded("The caller did not read what was sent."))
        return ScriptAnswer(body, exec_ns=time.perf_counter_ns() - begun_ns)

    def _guarded(self, function: Callable[[], _Result]) -> _Result:
        """Call what runs code of the script."""
        return call_contained(function, self._watchdog)

    def _call(self, arguments: dict[str, Any], request: ScriptRequest | None) -> Any:
        if not uses_flask():
            return finish(self._run(**arguments))
        head, body = (NO_HEAD, b"") if request is None else (request.head or NO_HEAD, request.body)
        with flask_context(head, body):
            return finish(self._run(**arguments))

    def _with_plain_numbers(self, error: BaseException, request: ScriptRequest) -> ScriptRequest | None:
        """The request with numbers for scalars of numpy, if they are why the script could not read its body."""
        if self.form.kind != "string" or not isinstance(error, json.JSONDecodeError):
            return None
        # What else the script has parsed is no matter of the caller's.
        text = request.body.decode().removeprefix("\ufeff")
        plain = plain_numbers(text, error.pos) if error.doc == text else None
        return None if plain is None else dataclasses.replace(request, body=plain.encode())

    def _fault(self, error: BaseException, request: ScriptRequest) -> str | None:
        """Return the error of a body that a script, which takes text, could not read."""
        if self.form.kind != "string" or isinstance(error, (ScoringTimeout, StateNotCopied)):
            return None
        return json_fault(request.body.decode(errors="replace").removeprefix("\ufeff"))


def refusal_of(error: BaseException) -> ScriptAnswer:
    """Return the answer for a request that failed; what the script is to blame for goes to the log."""
    if isinstance(error, RequestError):
        return _told(error)
    error_id = _log_failure("run() raised", error)
    told = error if isinstance(error, ScoringTimeout) else ModelFailed(error_id=error_id)
    return _told(told, failed=True, error_id=error_id)


def refusal_with(error: Exception, message: str, status: int) -> ScriptAnswer:
    """Return the answer for a request that failed with an exception that says itself what its caller is told."""
    failed = status >= _FIRST_FAILED
    content = {"message": message, "code": ModelFailed.code}
    if failed:
        content["error_id"] = _log_failure("run() raised", error)
    return ScriptAnswer(json.dumps(content).encode(), status=status, failed=failed)


def _log_failure(what: str, error: BaseException) -> str:
    error_id = f"{secrets.randbits(63):016x}"
    # Without a frame of the script it is what the server did with the result.
    frames = frames_of_script(error) or error.__traceback__
    logger.error("error id %s: %s", error_id, what, exc_info=(type(error), error, frames))
    return error_id


def _told(error: StokerError, *, failed: bool = False, error_id: str = "") -> ScriptAnswer:
    content = {"message": str(error), "code": error.code}
    if error_id:
        content["error_id"] = error_id
    return ScriptAnswer(json.dumps(content).encode(), status=error.status, failed=failed)
