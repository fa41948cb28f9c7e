"""Calls an entry script: a request becomes arguments, `run` is called, its result becomes an answer."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import msgspec

from stoker.errors import (
    DeadlineExceeded,
    MalformedBody,
    RequestError,
    ScoringTimeout,
    unexpected_error,
)
from stoker.script_form import ScriptForm
from stoker.scripts.call_watchdog import Watchdog, call_contained
from stoker.scripts.coroutines import finish
from stoker.scripts.exits import contain
from stoker.scripts.forms import NO_HEAD, bind_form, request_headers
from stoker.scripts.json_faults import json_fault
from stoker.scripts.pieces import Pieces, is_yielded, yields
from stoker.scripts.refusals import error_answer, log_failure, refusal_of
from stoker.scripts.results import encode_result, is_response
from stoker.scripts.schemas import failed_in_conversion
from stoker.scripts.sequence_arguments import StateNotCopied
from stoker.scripts.stand_ins import flask_context, stand_ins, uses_flask
from stoker.system.logs import requests_in_log
from stoker.wire.json_bodies import plain_numbers
from stoker.wire.script_requests import ScriptAnswer, ScriptRequest

logger = logging.getLogger(__name__)


_PATIENCE_S: Final = 60.0
"""How long a caller may take to read a piece if the script has no timeout."""


class ScriptCalls:
    """An initialised script, bound to the form of its `run`.

    `answer` takes all steps for one request; batched calls combine the steps in other ways. Each step may be taken on
    any thread, and by several threads at once if the script allows that. The log lines of a step belong to the
    requests of the `requests_in_log` around it.
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
            raw: Whether `rawhttp` has decorated a function in this process.
            apart: The arguments of `run` that are not in its requests.
        """
        self._run = run
        self._watchdog = watchdog
        self._form, self._with_headers = bind_form(run, raw=raw, apart=apart)
        described = self._form.described
        self.form: ScriptForm = msgspec.structs.replace(
            # A script that uses Flask may look at Flask's request.
            described,
            wants_head=described.wants_head or self._with_headers or uses_flask() or yields(run),
            yields=yields(run),
        )
        """The form of its calls, without a choice of batching."""

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
            request: Becomes Flask's `request`, for a script that uses Flask; None without a caller.

        Raises:
            RequestError: A schema decorator could not convert an argument.
            ScoringTimeout: The call took too long and was interrupted.
            Exception: `run` raised it; `sys.exit()` and the like are a RuntimeError.
        """
        try:
            return call_contained(lambda: self._call(arguments, request), self._watchdog)
        except Exception as error:
            if self.form.kind == "schema" and failed_in_conversion(self._run, error):
                raise RequestError(str(error)) from error
            raise

    def encode(self, result: Any, exec_ns: int) -> ScriptAnswer:
        """Return the result of `run` as the answer; 500 and a log line if it cannot be encoded."""
        try:
            if is_response(result):
                return msgspec.structs.replace(stand_ins().answer_from(result), exec_ns=exec_ns)
            return ScriptAnswer(contain(lambda: encode_result(result)), exec_ns=exec_ns)
        except Exception as error:  # noqa: BLE001  # objects of a script may raise any exception when they are read
            error_id = log_failure("the result of run() cannot be sent", error)
            return error_answer(unexpected_error(error), failed=True, error_id=error_id)

    def refusal(self, error: BaseException, request: ScriptRequest) -> ScriptAnswer:
        """Return the answer for a request that failed; errors of the script go to the log."""
        if not isinstance(error, RequestError) and (fault := self._fault(error, request)):
            logger.warning("run() raised %s for a body that is not valid JSON", type(error).__name__)
            error = MalformedBody.not_json(fault)
        return refusal_of(error)

    def answer(
        self, request: ScriptRequest, more: Callable[[], Mapping[str, Any]] | None = None
    ) -> ScriptAnswer:
        """Score one request; never raises.

        Args:
            more: Makes the arguments that are not in the request; None if there are none.
        """
        with requests_in_log(request.request_id):
            try:
                arguments = self.arguments(request)
                try:
                    if more is not None:
                        arguments.update(call_contained(more, self._watchdog))
                    begun_ns = time.perf_counter_ns()
                    result = self.invoke(arguments, request)
                    if self.form.yields and is_yielded(result):
                        return self._answer_yielded(result, request, begun_ns)
                    return self.encode(result, time.perf_counter_ns() - begun_ns)
                finally:
                    self._form.release(arguments)
            except Exception as error:  # noqa: BLE001  # becomes the answer
                plain = self._with_plain_numbers(error, request)
                return self.refusal(error, request) if plain is None or more else self.answer(plain)

    def _answer_yielded(self, yielded: Any, request: ScriptRequest, begun_ns: int) -> ScriptAnswer:
        """Stream the pieces that `run` yields, or answer with the only piece, or with all as one list."""
        pieces = Pieces(yielded, self._watchdog)
        head = request.head or NO_HEAD
        body = b""
        with flask_context(head, request.body):
            if not head.stream:
                body = pieces.only() if head.only_piece else pieces.whole()
            else:
                patience_s = _PATIENCE_S if self._watchdog is None else self._watchdog.timeout_ms / 1000
                if not pieces.send(head.stream, patience_s):
                    return error_answer(DeadlineExceeded("The caller did not read the pieces in time."))
        return ScriptAnswer(body, exec_ns=time.perf_counter_ns() - begun_ns)

    def _call(self, arguments: dict[str, Any], request: ScriptRequest | None) -> Any:
        if not uses_flask():
            return finish(self._run(**arguments))
        head, body = (NO_HEAD, b"") if request is None else (request.head or NO_HEAD, request.body)
        with flask_context(head, body):
            return finish(self._run(**arguments))

    def _with_plain_numbers(self, error: BaseException, request: ScriptRequest) -> ScriptRequest | None:
        """Return the request with plain numbers if the script failed at numpy's notation of scalars in its body."""
        if self.form.kind != "string" or not isinstance(error, json.JSONDecodeError):
            return None
        # The script may have failed to parse another text than the body.
        text = request.body.decode().removeprefix("\ufeff")
        plain = plain_numbers(text, error.pos) if error.doc == text else None
        return None if plain is None else msgspec.structs.replace(request, body=plain.encode())

    def _fault(self, error: BaseException, request: ScriptRequest) -> str | None:
        """Return the fault of a body that a script, which takes text, could not read; None if the body is JSON."""
        if self.form.kind != "string" or isinstance(error, (ScoringTimeout, StateNotCopied)):
            return None
        return json_fault(request.body.decode(errors="replace").removeprefix("\ufeff"))
