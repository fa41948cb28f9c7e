"""The Flask context of a request, for scripts that use Flask's `request`, `jsonify` or `current_app`.

On Azure scripts run inside a Flask application. Stoker has none; a script that imports Flask gets one.
"""

from __future__ import annotations

import functools
import importlib
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from stoker.wire.script_requests import RequestHead
from stoker_azure.environ import wsgi_environ

__all__ = ["flask_context"]


def flask_context(head: RequestHead, body: bytes) -> AbstractContextManager[object]:
    """Return Flask's context for a request.

    Args:
        head: Method, path, query, headers and caller.
        body: The request's body, uncompressed; Flask's request reads it independently of other readers.
    """
    context: AbstractContextManager[object] = _application().request_context(wsgi_environ(head, body))
    return context


@functools.cache
def _application() -> Any:
    flask = importlib.import_module("flask")
    return flask.Flask("entry_module", root_path=str(Path.cwd()), static_folder=None)
