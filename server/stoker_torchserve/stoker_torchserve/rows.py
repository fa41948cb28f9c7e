"""TorchServe's rows: what a handler gets of a request, and what becomes of what it returns.

A row has the fields of the request: those of its query, those of a form, else `body`. JSON is parsed and text decoded
where the content type says so; all else is a `bytearray`.
"""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import parse_qsl

from stoker.errors import MalformedBody, UnsupportedEncoding
from stoker.scripts.forms import NO_HEAD
from stoker.wire.images import form_parts
from stoker.wire.script_requests import ScriptAnswer, ScriptRequest
from stoker_torchserve.ts.context import RequestProcessor

Row = dict[str, Any]

_JSON: Final = "application/json"
_FORM: Final = "application/x-www-form-urlencoded"
_MOST_PARTS: Final = 1000
# Of a part's head: name and file name of its content-disposition, and its content type.
_NAME: Final = re.compile(rb';[ \t]*name=(?:"([^"]*)"|([^;\s]+))', re.IGNORECASE)
_FILE: Final = re.compile(rb";[ \t]*filename\*?=", re.IGNORECASE)
_TYPE: Final = re.compile(rb"^content-type:([^;\r\n]*)", re.IGNORECASE | re.MULTILINE)
_OK: Final = 200
_FIRST_FAILED: Final = 500
_BODILESS: Final = (204, 304)
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
# The server writes these itself: ids, and framing.
_SERVERS_OWN: Final = frozenset(
    {"connection", "content-length", "keep-alive", "transfer-encoding", "x-request-id"}
)


def read_row(request: ScriptRequest) -> tuple[Row, RequestProcessor]:
    """Return the row of a request, and its head as handlers ask for it.

    Raises:
        MalformedBody: Its form is broken.
        UnsupportedEncoding: It is compressed.
    """
    head = request.head or NO_HEAD
    headers: dict[str, Any] = dict(head.headers)
    if headers.get("content-encoding", "identity") != "identity":
        raise UnsupportedEncoding("A handler gets the body as it was sent: send it uncompressed.")
    row: Row = {}
    kinds: dict[str, Any] = {}
    for name, content, kind in _fields(request.body, head.query, str(headers.get("content-type", ""))):
        row[name] = _value(content, kind)
        kinds[name] = {"content-type": kind}
    # The headers of a request win over fields of the same name.
    return row, RequestProcessor({**kinds, **headers})


def _fields(body: bytes, query: str, content_type: str) -> Iterator[tuple[str, bytes, str]]:
    """Yield name, content and content type of each field."""
    for name, value in parse_qsl(query, keep_blank_values=True):
        yield name, value.encode(), ""
    kind = _media_type(content_type)
    if kind == _FORM:
        # As latin-1, every byte comes back as it was.
        for name, value in parse_qsl(body.decode("latin-1"), keep_blank_values=True, encoding="latin-1"):
            yield name.encode("latin-1").decode(errors="replace"), value.encode("latin-1"), ""
    elif kind.startswith("multipart/"):
        yield from _parts(body, content_type)
    else:
        yield "body", body, kind


def _parts(body: bytes, content_type: str) -> Iterator[tuple[str, bytes, str]]:
    for head, content in form_parts(body, content_type.encode("latin-1", "replace"), _MOST_PARTS):
        name = _NAME.search(head)
        if name is None:
            raise MalformedBody("A field of the form has no name.")
        kind = _TYPE.search(head) if _FILE.search(head) else None
        text = (name[1] or name[2] or b"").decode(errors="replace")
        yield text, content, "" if kind is None else kind[1].decode(errors="replace").strip().lower()


def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _value(content: bytes, kind: str) -> Any:
    try:
        if kind == _JSON:
            return json.loads(content)
        if kind.startswith("text"):
            return content.decode()
    except (ValueError, RecursionError):
        # As in TorchServe the handler gets what was sent.
        pass
    return bytearray(content)


def encode_answer(value: Any, processor: RequestProcessor) -> ScriptAnswer:
    """Return what a handler returned for a row as it is sent, with the status and the headers that it has set.

    Raises:
        TypeError: JSON cannot hold it.
        ValueError: It contains itself, or the status or a header cannot be sent.
    """
    body, kind = _encoded(value)
    headers = {name.lower(): str(text) for name, text in processor.get_response_headers().items()}
    headers = {"content-type": kind, **headers}
    status = processor.get_response_status_code()
    status = _OK if status is None else status
    if not isinstance(status, int) or not 200 <= status < 600:
        raise ValueError(f"the handler has set the status {status!r}; use one from 200 to 599")
    lines = b"".join(_line(name, text) for name, text in headers.items() if name not in _SERVERS_OWN)
    return ScriptAnswer(b"" if status in _BODILESS else body, status, lines, status >= _FIRST_FAILED)


def _encoded(value: Any) -> tuple[bytes, str]:
    """The content of an answer, and its type."""
    torch = sys.modules.get("torch")
    if isinstance(value, bytes | bytearray):
        return bytes(value), "application/octet-stream"
    if isinstance(value, str):
        return value.encode(), "text/plain; charset=utf-8"
    if torch is not None and isinstance(value, torch.Tensor):
        file = io.BytesIO()
        torch.save(value, file)
        return file.getvalue(), "application/octet-stream"
    return json.dumps(value, indent=2).encode(), _JSON


def _line(name: str, text: str) -> bytes:
    if not _TOKEN.fullmatch(name):
        raise ValueError(f"the handler has set a header with the name {name!r}")
    if _CONTROL.search(text):
        raise ValueError(f"the handler has set a control character in the header {name}: {text!r}")
    return f"{name}: {text}\r\n".encode("latin-1")
