"""A faster `json.loads` for entry scripts.

Most of the work of an entry script for a row of numbers is to read them from the body. simdjson has proved that a
body with rows is JSON, without NaN, and without numbers that only Python can hold. From such a text orjson makes the
same objects as Python's reader, in about a tenth of the time. Python's reader gets all other texts, and calls with
options.
"""

from __future__ import annotations

import contextlib
import functools
import json
import threading
from collections.abc import Iterator
from typing import Any, Final

import orjson

_known: Final = threading.local()


@contextlib.contextmanager
def known_json(body: bytes) -> Iterator[None]:
    """Let this thread read `body` faster: it has passed `wire.script_requests.row_count`, or was merged from such."""
    _known.texts = {str: body.decode(), bytes: body}
    try:
        yield
    finally:
        _known.texts = {}


def quicken_json_loads() -> None:
    """Make `json.loads` of this process faster for known bodies; call it before the script is imported."""
    original = json.loads
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def loads(s: Any, *args: Any, **kwargs: Any) -> Any:
        texts: dict[type, Any] = getattr(_known, "texts", {})
        text = texts.get(type(s))
        # Comparing a text costs a thousandth of reading it.
        if text is not None and not args and not kwargs and s == text:
            # The two readers have different limits of depth.
            with contextlib.suppress(orjson.JSONDecodeError):
                return orjson.loads(s)
        return original(s, *args, **kwargs)

    json.loads = loads
