"""The extension that provides Azure's modules and request objects to entry scripts, and Flask's context."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, cast

from stoker.system.extensions import find_extension, require_extension
from stoker.wire.script_requests import RequestHead, ScriptAnswer


class StandIns(Protocol):
    """The modules of Azure that entry scripts import, and the objects that stand for requests and answers."""

    def install(self) -> None:
        """Make the imports of Azure's packages work."""

    def raw_http_requested(self) -> bool:
        """Whether `rawhttp` has decorated a function in this process."""

    def request_from(self, head: RequestHead, body: bytes) -> Any:
        """Return the request object that a `run` decorated with `rawhttp` gets."""

    def answer_from(self, response: Any) -> ScriptAnswer:
        """Return the answer for a response object of Azure, Flask or Werkzeug."""

    def flask_context(self, head: RequestHead, body: bytes) -> AbstractContextManager[object]:
        """Return the context of Flask for a request."""


def find_stand_ins() -> StandIns | None:
    """Return the extension `azure`; None if it is not installed."""
    return cast("StandIns | None", find_extension("azure"))


def stand_ins() -> StandIns:
    """Return the extension `azure`, or raise the error that says how to install it."""
    return cast("StandIns", require_extension("azure"))


def uses_flask() -> bool:
    """Whether the script, or a module that it imports, has imported Flask."""
    return "flask" in sys.modules


def flask_context(head: RequestHead, body: bytes) -> AbstractContextManager[object]:
    """Return the context in which `run` is called: Flask's for this request, or an empty one without Flask.

    Args:
        body: The body, uncompressed; Flask's request reads it independently of other readers.
    """
    return stand_ins().flask_context(head, body) if uses_flask() else nullcontext()
