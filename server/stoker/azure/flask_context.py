"""The Flask context of a request, for scripts that use Flask's `request`, `jsonify` or `current_app`.

On Azure scripts run inside a Flask application. Stoker has none; a script that imports Flask gets one.
"""

from __future__ import annotations

import functools
import importlib
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from stoker.azure.environ import wsgi_environ
from stoker.wire.envelope import RequestHead

__all__ = ["flask_context", "uses_flask"]


def uses_flask() -> bool:
    """Whether the script, or something that it imports, has imported Flask."""
    return "flask" in sys.modules


def flask_context(head: RequestHead, body: bytes) -> AbstractContextManager[object]:
    """Return the context in which `run` is called: Flask's for this request, or an empty one without Flask.

    Args:
        head: Method, path, query, headers and caller.
        body: The request's body, uncompressed; Flask's request reads it independently of other readers.
    """
    if not uses_flask():
        return nullcontext()
    context: AbstractContextManager[object] = _application().request_context(wsgi_environ(head, body))
    return context


@functools.cache
def _application() -> Any:
    flask = importlib.import_module("flask")
    return flask.Flask("entry_module", root_path=str(Path.cwd()), static_folder=None)
