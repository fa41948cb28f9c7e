"""Responses that scripts make: the module `aml_response` of Azure's packages."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from werkzeug.urls import iri_to_uri
from werkzeug.wrappers import Response

from stoker.wire.script_requests import ScriptAnswer

__all__ = ["AMLResponse", "answer_from"]

_FAILED: Final = "x-ms-run-function-failed"
# The server writes these itself: ids, framing, and what the answer says by its attributes.
_SERVERS_OWN: Final = frozenset(
    {
        _FAILED,
        "connection",
        "content-length",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "x-ms-client-request-id",
        "x-ms-request-id",
        "x-ms-run-fn-exec-ms",
        "x-request-id",
    }
)
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_BODILESS: Final = {204, 304}


class AMLResponse(Response):
    """A response with a status and headers of its own, as scripts return it."""

    default_mimetype = "text/html"

    def __init__(
        self,
        message: Any,
        status_code: int | str,
        response_headers: Mapping[str, str] = MappingProxyType({}),
        json_str: bool = False,
        run_function_failed: bool = False,
    ) -> None:
        """Make a response.

        Args:
            message: The body: text or bytes; anything that JSON can hold with `json_str`. None is `{}`, as JSON.
            response_headers: Headers to add. Each value is split at commas, and each part is a header of its own.
                `Content-Type`, in this spelling and for text or bytes, replaces `text/html; charset=utf-8`; else it
                is added to the one that is there.
            json_str: Encode `message` as JSON.
            run_function_failed: Value of the header `x-ms-run-function-failed`, where the status is below 500.
        """
        if message is None or json_str:
            text = json.dumps({} if message is None else message)
            super().__init__(text, status=status_code, mimetype="application/json")
        else:
            super().__init__(message, status=status_code)
            if "Content-Type" in response_headers:
                self.headers.remove("Content-Type")
        self.headers[_FAILED] = str(run_function_failed)
        for name, value in response_headers.items():
            for part in value.split(","):
                self.headers.add(name, part.strip())


def answer_from(response: Response) -> ScriptAnswer:
    """Return a script's response as it is sent: an `AMLResponse`, or any response of Werkzeug or Flask.

    A body that is generated is generated here, so what it raises is raised here. Headers that the server writes
    itself (ids, length, framing, `x-ms-run-*`) are left out; a phrase behind the status is not kept.

    Raises:
        ValueError: The status is none that a request can end with, or a header cannot be sent: its name is no
            token, its value has a line break or characters that are not in latin-1.
    """
    status = response.status_code
    if not 200 <= status < 600:
        raise ValueError(
            f"run() returned a response with the status {response.status!r}; use one from 200 to 599"
        )
    lines = b"".join(
        _line(name, value) for name, value in response.headers if name.lower() not in _SERVERS_OWN
    )
    failed = status >= 500 or "True" in response.headers.getlist(_FAILED)
    try:
        body = b"" if status in _BODILESS else b"".join(response.iter_encoded())
    finally:
        response.close()
    return ScriptAnswer(body, status, lines, failed)


def _line(name: str, value: str) -> bytes:
    if name.lower() == "location":
        value = iri_to_uri(value)
    if not _TOKEN.fullmatch(name):
        raise ValueError(f"run() returned a response with the header name {name!r}")
    if _CONTROL.search(value):
        raise ValueError(
            f"run() returned a response with a control character in its header {name}: {value!r}"
        )
    return f"{name}: {value}\r\n".encode("latin-1")
