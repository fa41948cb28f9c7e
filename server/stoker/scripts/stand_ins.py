"""Azure's packages, as entry scripts import them: the extension `azure` provides them where it is installed."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, cast

from stoker.extensions import find_extension, require_extension
from stoker.wire.script_requests import RequestHead, ScriptAnswer

__all__ = ["StandIns", "find_stand_ins", "flask_context", "stand_ins", "uses_flask"]


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
    """Return the extension.

    Raises:
        OperatorError: It is not installed.
    """
    return cast("StandIns", require_extension("azure"))


def uses_flask() -> bool:
    """Whether the script, or something that it imports, has imported Flask."""
    return "flask" in sys.modules


def flask_context(head: RequestHead, body: bytes) -> AbstractContextManager[object]:
    """Return the context in which `run` is called: Flask's for this request, or an empty one without Flask.

    Args:
        head: Method, path, query, headers and caller.
        body: The request's body, uncompressed; Flask's request reads it independently of other readers.
    """
    return stand_ins().flask_context(head, body) if uses_flask() else nullcontext()
