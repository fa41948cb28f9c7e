"""Sizes as commands print them."""

import pytest

from stoker.commands.terminal import size_text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (2_500_000, "2.5 MB"),
        (7.2e9, "7.2 GB"),
        (3e12, "3.0 TB"),
    ],
)
def test_sizes(size_bytes: float, text: str) -> None:
    """Sizes are shown in decimal units."""
    assert size_text(size_bytes) == text
