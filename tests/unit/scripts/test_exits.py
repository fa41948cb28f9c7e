"""Exits of a script's code are errors."""

from __future__ import annotations

import asyncio

import pytest

from stoker.scripts.exits import contain


def test_results_and_exceptions_are_passed_on() -> None:
    """An Exception of the script keeps its type."""
    assert contain(lambda: 3) == 3
    with pytest.raises(KeyError):
        contain(lambda: {}["missing"])


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (SystemExit(2), r"^init\(\) called sys\.exit\(2\)$"),
        (KeyboardInterrupt(), r"^init\(\) raised KeyboardInterrupt$"),
        (asyncio.CancelledError(), r"^init\(\) raised CancelledError$"),
    ],
)
def test_base_exceptions_become_runtime_errors(error: BaseException, message: str) -> None:
    """The error names the code that raised it."""

    def leave() -> None:
        raise error

    with pytest.raises(RuntimeError, match=message) as raised:
        contain(leave, "init()")
    assert raised.value.__cause__ is error
