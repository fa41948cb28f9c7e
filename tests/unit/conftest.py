"""What the unit tests share."""

import sys

import pytest


@pytest.fixture
def without_flask(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in which nobody has imported Flask, as that of a script that does not; locust's tests import it."""
    monkeypatch.delitem(sys.modules, "flask", raising=False)
