"""Whether a frontend is ready or draining."""

from __future__ import annotations

import pytest

from stoker.errors import NotReady
from stoker.gateway.readiness import Readiness


@pytest.mark.parametrize("port_stays", [False, True])
def test_draining_closes_connections_and_ends_readiness(port_stays: bool) -> None:
    """Another server answers on the port then, and probes find it ready."""
    readiness, notified = Readiness(), []
    readiness.subscribe(lambda: notified.append(readiness.draining))
    readiness.check()
    readiness.start_draining(port_stays=port_stays)
    assert readiness.closes
    assert notified == [not port_stays]
    if port_stays:
        readiness.check()
    else:
        with pytest.raises(NotReady, match="shutting down"):
            readiness.check()


def test_notify_calls_listeners_in_the_order_of_their_subscription() -> None:
    """A pipeline joins again before others read whether it is ready."""
    readiness, calls = Readiness(), []
    readiness.subscribe(lambda: calls.append("pipeline"))
    readiness.subscribe(lambda: calls.append("health"))
    readiness.notify()
    assert calls == ["pipeline", "health"]
