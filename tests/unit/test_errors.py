"""The error tree: statuses, codes, and the drawing of it."""

import re

from stoker import errors
from stoker.errors import (
    DeadlineExceeded,
    OperatorError,
    Overloaded,
    Refusal,
    RequestError,
    ServingError,
    StokerError,
)

CLASSES = [
    found for found in vars(errors).values() if isinstance(found, type) and issubclass(found, Exception)
]
GROUPS = {ServingError, OperatorError}
"""Classes that only group others: what reaches a caller is always one of their children."""


def test_every_error_belongs_to_the_tree() -> None:
    """One `except StokerError` catches all that is raised on purpose; the module hides none."""
    assert all(issubclass(error, StokerError) for error in CLASSES)
    defined = {
        value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)
    }
    assert set(CLASSES) == defined


def test_codes_are_unique_and_stable_words() -> None:
    """Clients match on codes: each error has one of its own, in lower case with underscores."""
    codes = [error.code for error in CLASSES if error not in GROUPS]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", code) for code in codes)
    assert {group.code for group in GROUPS} == {StokerError.code}


def test_status_is_4xx_for_callers_and_5xx_for_the_server() -> None:
    """The caller's errors are 4xx, the server's are 5xx."""
    for error in CLASSES:
        expected = 4 if issubclass(error, RequestError) else 5
        assert error.status // 100 == expected, error


def test_the_drawn_tree_is_the_real_one() -> None:
    """The docstring draws every class under its parent, with its status and code."""
    assert errors.__doc__ is not None
    path: list[type] = []
    drawn = []
    drawing = errors.__doc__[errors.__doc__.index("\nStokerError ") + 1 :]
    for line in drawing.splitlines():
        found = re.fullmatch(r"((?:[│ ]  )*(?:[├└]─ )?)([A-Z]\w+)(?: +([45]\d\d) (\w+).*| .*)?", line)
        assert found is not None, line
        depth = len(found[1]) // 3
        error = getattr(errors, found[2])
        assert error.__mro__[1] is (path[depth - 1] if depth else Exception)
        if found[3]:
            assert (error.status, error.code) == (int(found[3]), found[4])
        path[depth:] = [error]
        drawn.append(error)
    assert sorted(drawn, key=str) == sorted(CLASSES, key=str)


def test_an_error_carries_its_message_and_when_to_come_back() -> None:
    """`str` is the caller's message; Retry-After is whole seconds or missing."""
    error = Overloaded("All rows are taken.", retry_after_s=3)
    assert (str(error), error.retry_after_s, error.status, error.code) == (
        "All rows are taken.",
        3,
        503,
        "overloaded",
    )
    assert StokerError("x").retry_after_s is None


def test_refused_request_gets_a_time_to_retry() -> None:
    """It is in milliseconds, and in whole seconds that are not earlier; one header has the expected wait."""
    refusal = Refusal(503, "overloaded", 2101, 84_100_000, 410, "target", 50_000_000)
    error = Overloaded("It would be too late.", refusal=refusal)
    assert (error.retry_after_s, error.retry_after_ms) == (3, 2101)
    assert refusal.explained == "reason=target, expected-ms=85, target-ms=50, rows-ahead=410"
    assert Refusal(503, "overloaded", 4).explained == "reason=rows"
    assert Refusal(503, "overloaded", 4).retry_after_s == 1
    assert DeadlineExceeded(refusal=refusal).retry_after_ms == 2101
    assert Overloaded("full", retry_after_s=2).retry_after_ms == 2000


def test_exit_codes_tell_settings_from_models() -> None:
    """2 for what can be mended, 1 for failed rows, 3 where a model does not load, as Azure has it."""
    codes = {error.__name__: error.exit_code for error in CLASSES if issubclass(error, OperatorError)}
    assert codes.pop("BatchFailed") == 1
    assert codes.pop("LoadFailed") == codes.pop("LoadTimeout") == codes.pop("ParityFailed") == 3
    assert set(codes.values()) == {2}
