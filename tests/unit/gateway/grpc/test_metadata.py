"""Heads of calls: their fields."""

from __future__ import annotations

import pytest

from stoker.gateway.grpc.metadata import head_reader

_FIELDS = [(b":method", b"POST"), (b":path", b"/a/b"), (b"content-type", b"application/grpc")]


@pytest.mark.parametrize(
    ("values", "authorization"),
    [
        ([], b""),
        ([b"Bearer a"], b"Bearer a"),
        ([b"Bearer a", b"Bearer b"], b"Bearer a, Bearer b"),
        ([b"", b"Bearer a"], b", Bearer a"),
        ([b"Bearer a", b""], b"Bearer a, "),
    ],
)
def test_repeated_authorization_is_joined_as_over_http(values: list[bytes], authorization: bytes) -> None:
    """Several values together are no key."""
    read = head_reader(lambda path: path)
    assert read([*_FIELDS, *((b"authorization", value) for value in values)]).authorization == authorization
