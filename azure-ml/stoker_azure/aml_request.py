"""Whole requests for scripts: the module `aml_request` of Azure's packages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from werkzeug.wrappers import Request

from stoker.wire.script_requests import RequestHead
from stoker_azure.wsgi import requesting_module, wsgi_environ

__all__ = ["AMLRequest", "rawhttp", "request_from"]

_Function = TypeVar("_Function", bound=Callable[..., Any])

_rawHttpRequested = False  # noqa: N816  # scripts and drivers look at it under this name


def rawhttp(func: _Function) -> _Function:
    """Ask for whole requests: `run` gets an `AMLRequest`, for every method.

    It holds for the process, whatever is decorated.

    Returns:
        `func` itself.
    """
    global _rawHttpRequested  # noqa: PLW0603  # the flag of the process is the contract
    _rawHttpRequested = True
    return func


class AMLRequest(Request):
    """The request that `run` gets: Werkzeug's request object, which Flask's is too."""


def request_from(head: RequestHead, body: bytes) -> Request:
    """Return the request object for `run`: an `AMLRequest` of the module whose `rawhttp` the script used.

    It keeps uploaded files open until it is closed; it is a context manager.

    Args:
        body: Its body, uncompressed.
    """
    module = requesting_module()
    kind: type[Request] = AMLRequest if module is None else module.AMLRequest
    # The real class has a constructor without arguments, which cannot succeed.
    request = kind.__new__(kind)
    Request.__init__(request, wsgi_environ(head, body))
    return request
