"""Whole requests for scripts: whether one asks for them, the WSGI environ, and the context of Flask.

Most scripts ask for none, so this module imports neither Werkzeug nor Flask.
"""

from __future__ import annotations

import functools
import importlib
import io
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote_to_bytes, urlsplit

if TYPE_CHECKING:
    from stoker.wire.script_requests import RequestHead

# Each real package has a module of this form, with a flag of its own.
_MODULES: Final = (
    "azureml_inference_server_http.api.aml_request",
    "azureml.contrib.services.aml_request",
    "stoker_azure.aml_request",
)


def raw_http_requested() -> bool:
    """Whether `rawhttp` has decorated anything in this process, in whichever module it was imported from."""
    return requesting_module() is not None


def requesting_module() -> ModuleType | None:
    """Return the module whose `rawhttp` has decorated something."""
    for name in _MODULES:
        module = sys.modules.get(name)
        if module is not None and getattr(module, "_rawHttpRequested", False) is True:
            return module
    return None


_UNPREFIXED: Final = {"CONTENT_TYPE", "CONTENT_LENGTH"}
# How the body came; the server has put it together.
_TRANSFER: Final = {"TRANSFER_ENCODING", "CONTENT_LENGTH"}
_HTTP_PORT: Final = 80


def wsgi_environ(head: RequestHead, body: bytes) -> dict[str, Any]:
    """Return the environ of PEP 3333 for a request that has been received whole.

    Repeated headers are joined by commas, and names with an underscore are left out, as gunicorn has it. There is
    no `Transfer-Encoding`, and `Content-Length` is that of `body`.

    Args:
        body: Its body; compressed if the head says so.
    """
    environ: dict[str, Any] = {}
    for name, value in head.headers:
        key = name.upper().replace("-", "_")
        if "_" in name or key in _TRANSFER:
            continue
        key = key if key in _UNPREFIXED else f"HTTP_{key}"
        environ[key] = f"{environ[key]},{value}" if key in environ else value
    if body or any(name.lower() == "content-length" for name, _ in head.headers):
        environ["CONTENT_LENGTH"] = str(len(body))
    host, port = _host_and_port(environ.get("HTTP_HOST", ""))
    return environ | {
        "REQUEST_METHOD": head.method,
        "SCRIPT_NAME": "",
        # Bytes as latin-1 characters, as PEP 3333 wants them.
        "PATH_INFO": unquote_to_bytes(head.path).decode("latin-1"),
        "RAW_URI": f"{head.path}?{head.query}" if head.query else head.path,
        "QUERY_STRING": head.query,
        "REMOTE_ADDR": head.remote,
        "SERVER_NAME": host,
        "SERVER_PORT": str(port),
        "SERVER_PROTOCOL": "HTTP/1.1",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(body),
        "wsgi.input_terminated": True,
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": True,
        "wsgi.run_once": False,
    }


def _host_and_port(host: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{host}")
        return parts.hostname or "localhost", parts.port or _HTTP_PORT
    except ValueError:
        return "localhost", _HTTP_PORT


def flask_context(head: RequestHead, body: bytes) -> AbstractContextManager[object]:
    """Return Flask's context for a request.

    Args:
        body: The request's body, uncompressed; Flask's request reads it independently of other readers.
    """
    context: AbstractContextManager[object] = _application().request_context(wsgi_environ(head, body))
    return context


@functools.cache
def _application() -> Any:
    flask = importlib.import_module("flask")
    return flask.Flask("entry_module", root_path=str(Path.cwd()), static_folder=None)
