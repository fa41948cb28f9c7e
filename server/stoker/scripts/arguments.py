"""The forms that `run` may have: its arguments, the decorators of `inference_schema`, and the state of sequences."""

from __future__ import annotations

import copy
import importlib
import inspect
import json
import sys
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Protocol, cast

from stoker.errors import LoadFailed, MalformedBody, RequestError, UnsupportedEncoding
from stoker.script_form import ScriptForm
from stoker.system.extensions import find_extension, require_extension
from stoker.wire.script_requests import RequestHead, ScriptAnswer, ScriptRequest


class StandIns(Protocol):
    """The modules that entry scripts import, and the objects of theirs that requests and answers become."""

    def install(self) -> None:
        """Make the imports of Azure's packages work."""

    def raw_http_requested(self) -> bool:
        """Whether `rawhttp` has decorated anything in this process."""

    def request_from(self, head: RequestHead, body: bytes) -> Any:
        """Return the request object that a `run` decorated with `rawhttp` gets."""

    def answer_from(self, response: Any) -> ScriptAnswer:
        """Return a response object of a script, one of Azure, Flask or Werkzeug, as it is sent."""

    def flask_context(self, head: RequestHead, body: bytes) -> AbstractContextManager[object]:
        """Return the context of Flask for a request."""


def find_stand_ins() -> StandIns | None:
    """Return the extension; None if it is not installed."""
    return cast("StandIns | None", find_extension("azure"))


def stand_ins() -> StandIns:
    """Return the extension."""
    return cast("StandIns", require_extension("azure"))


def uses_flask() -> bool:
    """Whether the script, or something that it imports, has imported Flask."""
    return "flask" in sys.modules


def flask_context(head: RequestHead, body: bytes) -> AbstractContextManager[object]:
    """Return the context in which `run` is called: Flask's for this request, or an empty one without Flask.

    Args:
        body: The request's body, uncompressed; Flask's request reads it independently of other readers.
    """
    return stand_ins().flask_context(head, body) if uses_flask() else nullcontext()


# What the decorators of `inference_schema` say of a `run`, be it the real package or Stoker's own.


_SCHEMA_PACKAGE: Final = "inference_schema"
_CONVERTERS: Final = ("inference_schema.", "stoker_azure.inference_schema")
_CONVERSION_ERRORS: Final = (ValueError, TypeError, LookupError, ArithmeticError)


def is_decorated(run: Callable[..., Any]) -> bool:
    """Whether `run` has an `input_schema` or `output_schema`."""
    # A script that has decorated something has imported the package.
    if _SCHEMA_PACKAGE not in sys.modules:
        return False
    try:
        return bool(_schema_util().is_schema_decorated(run))
    except AttributeError:
        # It looks into closures and finds what is no function there.
        return False


def schema_form(run: Callable[..., Any]) -> ScriptForm:
    """Return the form of a decorated `run`, with the Swagger schemas of its input and output."""
    schema_util = _schema_util()
    try:
        return ScriptForm(
            kind="schema",
            wants_head=True,
            input_schema=schema_util.get_input_schema(run),
            output_schema=schema_util.get_output_schema(run),
            swagger_versions=_versions(schema_util, run),
        )
    except Exception as error:
        raise LoadFailed(f"the schema of run() cannot be described: {error!r}") from error


def failed_in_conversion(run: Callable[..., Any], error: BaseException) -> bool:
    """Whether a decorator raised `error` while it converted an argument, before the script's own `run` began."""
    if not isinstance(error, _CONVERSION_ERRORS):
        return False
    own_code = getattr(inspect.unwrap(run), "__code__", None)
    converting = False
    frame = error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code is own_code:
            return False
        converting = converting or str(frame.tb_frame.f_globals.get("__name__")).startswith(_CONVERTERS)
        frame = frame.tb_next
    return converting


def _schema_util() -> Any:
    return importlib.import_module(f"{_SCHEMA_PACKAGE}.schema_util")


def _versions(schema_util: Any, run: Callable[..., Any]) -> tuple[str, ...]:
    # "3.0" and "2.0" are other spellings of "3" and "2".
    named = (str(version).removesuffix(".0") for version in schema_util.get_supported_versions(run))
    return tuple(dict.fromkeys(named))


# The forms that `run` may have, and the arguments that a request becomes in each.


_HEADERS: Final = "request_headers"
NO_HEAD: Final = RequestHead("POST", "/score", "", [], "")
"""Stands for the head of a request that comes from no caller."""
_REFUSED_KINDS: Final = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.VAR_KEYWORD,
)


class Form(Protocol):
    """How requests become arguments of `run`."""

    described: ScriptForm

    def data(self, request: ScriptRequest) -> dict[str, Any]:
        """Return the arguments for the data.

        Raises:
            RequestError: The request does not fit the form.
        """
        ...

    def release(self, arguments: dict[str, Any]) -> None:
        """Let go of what the arguments hold open; called when the answer is complete."""
        ...


class _StringForm:
    """`run(raw_data)`: the body as text."""

    described = ScriptForm()

    def __init__(self, name: str) -> None:
        self._name = name

    def data(self, request: ScriptRequest) -> dict[str, Any]:
        try:
            text = request.body.decode()
        except UnicodeDecodeError as error:
            raise MalformedBody.not_utf8(error) from None
        return {self._name: text.removeprefix("\ufeff")}

    def release(self, arguments: dict[str, Any]) -> None:
        pass


class _RawForm:
    """`@rawhttp`: the request itself."""

    described = ScriptForm(kind="raw", wants_head=True)

    def __init__(self, name: str) -> None:
        self._name = name

    def data(self, request: ScriptRequest) -> dict[str, Any]:
        return {self._name: stand_ins().request_from(request.head or NO_HEAD, request.body)}

    def release(self, arguments: dict[str, Any]) -> None:
        # Uploaded files.
        arguments[self._name].close()


class _SchemaForm:
    """`@input_schema`: the members of a JSON object by name, converted by the decorators."""

    def __init__(
        self, run: Callable[..., Any], parameters: list[inspect.Parameter], apart: Collection[str]
    ) -> None:
        self.described = schema_form(run)
        self._parameters = parameters
        # A description of our own, which lists the arguments that no decorator describes too.
        schema = self.described.input_schema or {}
        for name in apart:
            if schema.get("properties", {}).pop(name, None):
                raise LoadFailed(
                    f"the decorators of run() say that {name!r} is in its requests, and it is of their sequence: "
                    "give that member another name"
                )
            schema.get("example", {}).pop(name, None)

    def data(self, request: ScriptRequest) -> dict[str, Any]:
        head = request.head
        # The query of a GET has become a JSON object on its way.
        if head is not None and head.method != "GET" and not _is_json(head):
            raise UnsupportedEncoding("Expects Content-Type to be application/json")
        given = _json_object(request.body)
        arguments = {}
        for parameter in self._parameters:
            if parameter.name in given:
                arguments[parameter.name] = given[parameter.name]
            elif parameter.default is inspect.Parameter.empty:
                raise RequestError(f"A value is not provided for the '{parameter.name}' parameter.")
        return arguments

    def release(self, arguments: dict[str, Any]) -> None:
        pass


def parameters_of(run: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return what a script's `run` takes, by name."""
    try:
        return inspect.signature(run).parameters
    except (ValueError, TypeError) as error:
        raise LoadFailed(f"run() must be a Python function: {error}") from error


def bind_form(run: Callable[..., Any], *, raw: bool, apart: Collection[str] = ()) -> tuple[Form, bool]:
    """Find out how `run` is called, and whether it wants the argument `request_headers`.

    Args:
        raw: Whether `rawhttp` has decorated anything in this process.
    """
    takes = parameters_of(run)
    if any(parameter.kind in _REFUSED_KINDS for parameter in takes.values()):
        raise LoadFailed("run() cannot accept positional-only arguments, *args, or **kwargs.")
    if not takes:
        raise LoadFailed("run() needs to accept an argument for input data.")
    parameters = [
        parameter
        for parameter in takes.values()
        if parameter.name != _HEADERS and parameter.name not in apart
    ]
    if not parameters:
        given = " and ".join(f'"{name}"' for name in takes)
        raise LoadFailed(f"run() needs to accept an argument other than {given}.")
    with_headers = _HEADERS in takes
    if is_decorated(run):
        if raw:
            raise LoadFailed("run() cannot be decorated with both @rawhttp and @input_schema")
        return _SchemaForm(run, parameters, apart), with_headers
    data, *others = parameters
    for parameter in others:
        if parameter.default is inspect.Parameter.empty:
            kept = (
                " The setting sequence: {} gives it the state of a sequence."
                if parameter.name == "state"
                else ""
            )
            raise LoadFailed(
                f"run() has a second argument without a default: {parameter.name!r}. It is called with the request "
                f"as {data.name!r} and nothing else.{kept}"
            )
    return (_RawForm(data.name) if raw else _StringForm(data.name)), with_headers


def request_headers(head: RequestHead | None) -> dict[str, str]:
    """Return the headers as scripts of Azure get them.

    Names are in Title-Case, repeated ones are joined by commas, names with an underscore are left out. Where it has
    been said how long the caller waits, `X-Request-Timeout-Ms` is what is left of that now.
    """
    headers: dict[str, str] = {}
    for name, value in [] if head is None else head.headers:
        if "_" not in name:
            title = name.title()
            headers[title] = f"{headers[title]},{value}" if title in headers else value
    if head is not None and head.deadline_ns:
        left_ms = (head.deadline_ns - time.monotonic_ns()) / 1e6
        headers["X-Request-Timeout-Ms"] = str(max(round(left_ms), 1))
    return headers


def _is_json(head: RequestHead) -> bool:
    content_type = request_headers(head).get("Content-Type", "")
    media_type = content_type.partition(";")[0].strip().lower()
    return media_type == "application/json" or (
        media_type.startswith("application/") and media_type.endswith("+json")
    )


def _json_object(body: bytes) -> dict[str, Any]:
    if not body:
        raise MalformedBody("POST body is empty. Expecting a JSON dictionary.")
    try:
        # UTF-16 and UTF-32 are recognised, as by the Azure inference server.
        value = json.loads(body)
    except RecursionError:
        raise MalformedBody("POST body could not be decoded as JSON: it is nested too deeply") from None
    except ValueError as error:
        raise MalformedBody(f"POST body could not be decoded as JSON: {error}") from None
    if not isinstance(value, dict):
        raise MalformedBody("POST body should be a JSON dictionary.")
    return value


# What of the arguments of `run` is not in its request: the state of its sequence, and where in that it stands.


STATE: Final = "state"
"""The argument of `run` for the state of a request's sequence."""
STATES: Final = "states"
"""The argument of `run` for the states of the rows' sequences."""
STARTS: Final = "sequence_start"
ENDS: Final = "sequence_end"
ID: Final = "sequence_id"


class StateNotCopied(RuntimeError):
    """The state of a sequence holds what cannot be copied."""


def sequence_arguments(run: Callable[..., Any], state: str) -> frozenset[str]:
    """Return the arguments of a script with state that it gets beside its data."""
    takes = parameters_of(run)
    if state not in takes:
        data = "data, states" if state == STATES else "raw_data, state"
        raise LoadFailed(
            f"run() has no argument {state!r}, and the model is to keep state for sequences: write run({data}), or "
            "leave sequence out of its settings"
        )
    return frozenset({state, STARTS, ENDS, ID} & takes.keys())


def refuse_states(run: Callable[..., Any]) -> None:
    """Raise LoadFailed for a `run` that takes rows and states without a deployment that keeps any."""
    taken = parameters_of(run).get(STATES)
    if taken is not None and taken.default is inspect.Parameter.empty:
        raise LoadFailed(
            f"run() has an argument {STATES!r}, and the model keeps no state: give it the setting sequence: {{}}"
        )


def copy_state(state: dict[Any, Any] | None) -> dict[Any, Any]:
    """Return a state that `run` may change; one that has not begun is empty.

    Raises:
        StateNotCopied: It holds what cannot be copied.
    """
    try:
        return {} if state is None else copy.deepcopy(state)
    except Exception as error:
        raise StateNotCopied(
            f"the state of the sequence holds what cannot be copied: {error!r}; begin the sequence anew, and keep "
            "only data in its state"
        ) from error
