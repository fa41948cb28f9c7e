"""Fixtures of the client's tests."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from tests.unit.stoker_client.puppet_server import Behaviour, PuppetServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.unit.stoker_client.scripted import Kind


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> Kind:
    """Both clients, which share their logic and differ in how they wait."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def no_key_around(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the keys of the tests' user out of them."""
    for name in ("STOKER_KEY", "STOKER_PRIMARY_KEY", "STOKER_WORKSPACE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def serve() -> Iterator[Callable[[Behaviour], PuppetServer]]:
    """Start puppet servers that end with the test."""
    with ExitStack() as servers:
        yield lambda behaviour: servers.enter_context(PuppetServer(behaviour))
