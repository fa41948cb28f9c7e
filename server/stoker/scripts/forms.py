"""The forms that `run` may have, and the arguments that a request becomes in each form."""

from __future__ import annotations

import inspect
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from stoker.errors import LoadFailed, MalformedBody, RequestError, UnsupportedEncoding
from stoker.script_form import ScriptForm
from stoker.scripts.schemas import is_decorated, schema_form
from stoker.scripts.stand_ins import stand_ins
from stoker.wire.script_requests import RequestHead, ScriptRequest

_HEADERS: Final = "request_headers"
NO_HEAD: Final = RequestHead("POST", "/score", "", [], "")
"""Stands for the head of a request that comes from no caller."""
_REFUSED_KINDS: Final = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.VAR_KEYWORD,
)


class Form(ABC):
    """How requests become arguments of `run`."""

    described: ScriptForm

    @abstractmethod
    def data(self, request: ScriptRequest) -> dict[str, Any]:
        """Return the arguments for the data.

        Raises:
            RequestError: The request does not fit the form.
        """

    def release(self, arguments: dict[str, Any]) -> None:
        """Close files of the arguments; called when the answer is complete."""
        del arguments


class _StringForm(Form):
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


class _RawForm(Form):
    """`@rawhttp`: the request itself."""

    described = ScriptForm(kind="raw", wants_head=True)

    def __init__(self, name: str) -> None:
        self._name = name

    def data(self, request: ScriptRequest) -> dict[str, Any]:
        return {self._name: stand_ins().request_from(request.head or NO_HEAD, request.body)}

    def release(self, arguments: dict[str, Any]) -> None:
        # Uploaded files.
        arguments[self._name].close()


class _SchemaForm(Form):
    """`@input_schema`: the members of a JSON object by name, converted by the decorators."""

    def __init__(
        self, run: Callable[..., Any], parameters: list[inspect.Parameter], apart: Collection[str]
    ) -> None:
        self.described = schema_form(run)
        self._parameters = parameters
        # The schema also lists arguments that no decorator describes.
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
        # The server has made a JSON object of the query of a GET.
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


def parameters_of(run: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a script's `run` by name."""
    try:
        return inspect.signature(run).parameters
    except (ValueError, TypeError) as error:
        raise LoadFailed(f"run() must be a Python function: {error}") from error


def bind_form(run: Callable[..., Any], *, raw: bool, apart: Collection[str] = ()) -> tuple[Form, bool]:
    """Return the form of a `run`, and whether it takes the argument `request_headers`.

    Args:
        raw: Whether `rawhttp` has decorated a function in this process.
        apart: The arguments that are not in its requests.
    """
    signature = parameters_of(run)
    if any(parameter.kind in _REFUSED_KINDS for parameter in signature.values()):
        raise LoadFailed("run() cannot accept positional-only arguments, *args, or **kwargs.")
    if not signature:
        raise LoadFailed("run() needs to accept an argument for input data.")
    parameters = [
        parameter
        for parameter in signature.values()
        if parameter.name != _HEADERS and parameter.name not in apart
    ]
    if not parameters:
        given = " and ".join(f'"{name}"' for name in signature)
        raise LoadFailed(f"run() needs to accept an argument other than {given}.")
    with_headers = _HEADERS in signature
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

    Names are in Title-Case, repeated ones are joined by commas, names with an underscore are left out. If the request
    has a deadline, `X-Request-Timeout-Ms` is the time until then.
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
