"""Companions of a row of JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.puppets import STEADY

from stoker.scripts.json_companions import companions_of
from stoker.wire.script_requests import row_texture

pytestmark = pytest.mark.usefixtures("without_flask")


@given(
    st.recursive(
        st.booleans() | st.integers(-1000, 1000) | st.floats(0, 1) | st.text(max_size=5) | st.none(),
        lambda values: st.lists(values, max_size=3),
        max_leaves=6,
    )
)
@STEADY
def test_companions_have_the_types_of_the_row(row: Any) -> None:
    """Companions have the row's texture, so they would be merged with it; they differ, and JSON can hold them."""
    texture = row_texture(json.dumps({"data": [row]}).encode())
    for _, made in companions_of(row):
        assert made != row
        assert row_texture(json.dumps({"data": [made]}, allow_nan=False).encode()) == texture
