"""A request to a script that takes whole bodies, as the row that its process gets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stoker.wire.envelope import ScriptRequest
from stoker.wire.json_bodies import check_text
from stoker.wire.merging import row_count

if TYPE_CHECKING:
    from stoker.script_form import ScriptForm
    from stoker.wire.envelope import RequestHead

__all__ = ["script_row"]


def script_row(
    parser: Any, form: ScriptForm, request_id: bytes, body: bytes, head: RequestHead | None
) -> bytes:
    """Return a request as its row.

    Args:
        parser: A `simdjson.Parser`, which counts the rows of bodies that may be merged; it belongs to one thread.
        form: How the script is called.
        request_id: Names the request in the log.
        body: As it was received.
        head: What else the script is to see.

    Raises:
        MalformedBody: It is to be text, and is not.
    """
    if form.kind == "string":
        check_text(body)
    rows = row_count(parser, body, form.merge_key) if form.batching == "merge" else 0
    return ScriptRequest(request_id, body, rows, head).pack()
