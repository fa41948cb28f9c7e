"""Tables for people."""

import pytest

from stoker_bench.reports import aligned, figure, markdown


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0.123, "0.12"), (9.87, "9.87"), (12.34, "12.3"), (123.4, "123"), (42_310.2, "42,310")],
)
def test_figures_have_three_digits_or_so(value: float | None, text: str) -> None:
    """Small figures keep decimals, large ones are grouped, unknown ones are a dash."""
    assert figure(value) == text


def test_aligned_columns() -> None:
    """Names stand left, figures right, and no line has trailing spaces."""
    table = aligned(["", "requests/s"], [["bare", "42,310"], ["hand-written", "8,800"]])
    assert table.splitlines() == [
        "              requests/s",
        "------------  ----------",
        "bare              42,310",
        "hand-written       8,800",
    ]


def test_markdown_table() -> None:
    """The rule aligns all columns but the first to the right."""
    assert markdown(["server", "×"], [["Stoker", "4.9"]]).splitlines() == [
        "| server | × |",
        "| --- | ---: |",
        "| Stoker | 4.9 |",
    ]
