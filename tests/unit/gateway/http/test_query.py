"""The query of a GET as a JSON body."""

import json
from urllib.parse import quote, urlencode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.puppets import STEADY

from stoker.errors import MalformedBody
from stoker.gateway.http.requests import query_body

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@settings(STEADY, max_examples=40)
@given(st.dictionaries(st.text(), json_values, max_size=5))
def test_arguments_that_are_json_are_the_members(arguments: dict[str, object]) -> None:
    """An object comes back from a query with each of its members as JSON, in order."""
    query = "&".join(
        f"{quote(name, safe='')}={quote(json.dumps(value))}" for name, value in arguments.items()
    )
    assert json.loads(query_body(query.encode())) == arguments
    assert list(json.loads(query_body(query.encode()))) == list(arguments)


@STEADY
@given(st.lists(st.text(), min_size=2))
def test_several_values_of_a_name_are_a_list(values: list[str]) -> None:
    """It keeps the order of the query; a value that is no JSON is a text."""
    query = urlencode([("a", json.dumps(value)) for value in values])
    assert json.loads(query_body(query.encode())) == {"a": values}


@pytest.mark.parametrize(
    ("query", "body"),
    [
        (b"", b"{}"),
        (b"a", b'{"a": ""}'),
        (b"=1", b'{"": 1}'),
        (b"a=1;b=2", b'{"a": "1;b=2"}'),
        (b"a=1&&b=2&", b'{"a": 1, "b": 2}'),
        (b"a=+1", b'{"a": 1}'),
        (b"a=%2B1", b'{"a": "+1"}'),
        (b"a=%FF%41", b'{"a": "%FFA"}'),
        (b"a=\xe9", b'{"a": "%E9"}'),
        (b"a=%", b'{"a": "%"}'),
        (b"a=1e999", b'{"a": Infinity}'),
        (b"a=" + b"9" * 5000, b'{"a": "' + b"9" * 5000 + b'"}'),
    ],
)
def test_odd_queries(query: bytes, body: bytes) -> None:
    """No query is an error; undecodable parts stay as they were sent."""
    assert query_body(query) == body


@pytest.mark.parametrize("value", ["[" * 101, '{"a":' * 20_000])
def test_deep_values_are_malformed(value: str) -> None:
    """The message names the argument."""
    with pytest.raises(MalformedBody, match="'deep' is nested more than 100 levels"):
        query_body(f"a=1&deep={quote(value)}".encode())
