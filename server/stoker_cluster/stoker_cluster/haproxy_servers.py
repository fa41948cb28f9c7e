"""HAProxy's servers and requests: its answers about them, and the commands that change its servers."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from typing import Final

from stoker_cluster.endpoints import Server
from stoker_cluster.routing import backend_of

SHOW_STATES: Final = "show servers state"
"""The command whose answer `states_in` reads."""
SHOW_BACKENDS: Final = "show stat -1 2 -1"
"""The command whose answer `requests_in` reads."""

_READY: Final = "ready"
_DRAIN: Final = "drain"
_ADMIN_STATES: Final = {0: _READY, 8: _DRAIN}
_BACKEND, _SERVER, _ADMIN_STATE = 1, 3, 6
_HOLD: Final = "hold"
# Two looks half a second apart say that a server is gone, which is within the shortest usual drain; one is enough to
# bring it back.
_CHECK: Final = "check inter 1s fastinter 500ms fall 2 rise 1"


def states_in(shown: str) -> dict[tuple[str, str], str]:
    """Return the servers that HAProxy has, by backend and name: whether each is `ready`, in `drain`, or neither."""
    states = {}
    for line in shown.splitlines():
        fields = line.split()
        if len(fields) > _ADMIN_STATE and not line.startswith("#") and fields[_SERVER] != _HOLD:
            state = _ADMIN_STATES.get(int(fields[_ADMIN_STATE]), "")
            states[fields[_BACKEND], fields[_SERVER]] = state
    return states


def requests_in(shown: str) -> int:
    """Return how many requests HAProxy has that wait for a server, or for the answer of one."""
    return sum(int(backend["scur"]) for backend in csv.DictReader(shown.removeprefix("# ").splitlines()))


def commands(
    states: Mapping[tuple[str, str], str], wanted: Mapping[str, frozenset[Server]], most_requests: int
) -> Iterator[str]:
    """Yield the commands that change HAProxy's servers to the wanted ones.

    New servers come first, so that requests have somewhere to go. Servers that are gone get no new requests, and
    are removed once they have no connections: HAProxy refuses to remove them before, and is asked again next time.

    Args:
        states: What HAProxy has, see `states_in`.
        wanted: The servers of each version.
        most_requests: Most requests in a server at once; 0 is without limit.
    """
    limit = f" maxconn {most_requests}" if most_requests else ""
    ready: dict[tuple[str, str], bool] = {}
    for version, servers in wanted.items():
        for server in sorted(servers):
            key = backend_of(version), server.name
            ready[key] = ready.get(key, False) or server.ready
            if server.ready and key not in states:
                path = "/".join(key)
                yield f"add server {path} {server.name} {_CHECK}{limit}"
                yield f"enable health {path}"
                yield f"set server {path} state {_READY}"
    for key, state in states.items():
        path = "/".join(key)
        if key not in ready:
            yield f"set server {path} state maint"
            yield f"del server {path}"
        elif state != (expected := _READY if ready[key] else _DRAIN):
            yield f"set server {path} state {expected}"
