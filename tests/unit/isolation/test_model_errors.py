"""Messages of models' errors fit into a line of the log."""

from __future__ import annotations

from stoker.isolation.model_errors import in_one_line


def test_a_message_has_one_line_of_bounded_length() -> None:
    """White space is joined and the rest cut; an error without a message has its type."""
    assert in_one_line(ValueError("no\n  such\trow")) == "no such row"
    assert len(in_one_line(ValueError("x" * 10_000))) == 200
    assert in_one_line(SilentError()) == "SilentError"


class SilentError(Exception):
    """An error without a message."""
