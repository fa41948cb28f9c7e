"""The query of a GET as the JSON body that it stands for: `?a=1&b=x` is `{"a": 1, "b": "x"}`."""

from __future__ import annotations

import codecs
import json
from typing import Any, Final
from urllib.parse import parse_qsl

from stoker.echo import quoted
from stoker.errors import MalformedBody
from stoker.wire.json_bodies import nests_deeper

__all__ = ["query_body"]

_MAX_DEPTH: Final = 100


def query_body(query: bytes) -> bytes:
    """Return the JSON object of a query's arguments, in their order.

    Each value is read as JSON (`NaN` included), and is taken as a string if it is not JSON. A name that occurs
    several times gets the list of its values. Percent-encoded bytes that are not UTF-8 stay as they were sent.

    Args:
        query: What follows the `?`, percent-encoded.

    Raises:
        MalformedBody: A value is nested too deeply.
    """
    values: dict[str, list[Any]] = {}
    pairs = parse_qsl(query.decode(errors=_KEPT), keep_blank_values=True, errors=_KEPT)
    for name, text in pairs:
        values.setdefault(name, []).append(_value(name, text))
    arguments = {name: given[0] if len(given) == 1 else given for name, given in values.items()}
    return json.dumps(arguments).encode()


def _value(name: str, text: str) -> Any:
    # There may be thousands of short ones.
    if len(text) > _MAX_DEPTH and nests_deeper(text.encode(), _MAX_DEPTH):
        raise MalformedBody(f"The argument {quoted(name)} is nested more than {_MAX_DEPTH} levels deep.")
    try:
        return json.loads(text)
    except ValueError:
        return text


def _keep_percent_encoded(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError), "only used for decoding"
    return "".join(f"%{byte:02X}" for byte in error.object[error.start : error.end]), error.end


_KEPT: Final = "stoker.percent-encoded"
codecs.register_error(_KEPT, _keep_percent_encoded)
