"""A port of this machine that leads to the pods of a service by way of the API server: a kubeconfig is enough."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from itertools import count
from typing import Final, Protocol

from stoker_cluster.access import Cluster
from stoker_cluster.errors import ClusterError
from stoker_cluster.objects.configuration import HTTP_PORT

_CHUNK_BYTES: Final = 65_536


class Forwarded(Protocol):
    """A service whose pods a port leads to, such as `stoker_cluster.cluster_service.ClusterService`.

    Attributes:
        instance: What messages call it.
    """

    namespace: str
    instance: str

    def ready_pods(self) -> list[str]:
        """Return the names of those that answer."""
        ...


@contextlib.contextmanager
def forwarding(
    cluster: Cluster, service: Forwarded, port: int, say: Callable[[str], object]
) -> Iterator[int]:
    """Listen on a port of the loopback interface while the body runs; each connection goes to the next ready pod.

    Args:
        port: The port; 0 is a free one.
        say: Called with the reason if a connection fails.

    Yields:
        The port.
    """
    with socket.create_server(("127.0.0.1", port)) as listener:
        accepting = threading.Thread(target=_accept, args=(listener, cluster, service, say), daemon=True)
        accepting.start()
        try:
            yield int(listener.getsockname()[1])
        finally:
            # Wakes the thread, which closing alone does not.
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join()


def _accept(
    listener: socket.socket, cluster: Cluster, service: Forwarded, say: Callable[[str], object]
) -> None:
    for number in count():
        try:
            caller, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_serve, args=(caller, cluster, service, number, say), daemon=True).start()


def _serve(
    caller: socket.socket,
    cluster: Cluster,
    service: Forwarded,
    number: int,
    say: Callable[[str], object],
) -> None:
    with caller:
        try:
            ready = service.ready_pods()
            tunnel = (
                cluster.tunnel(service.namespace, ready[number % len(ready)], HTTP_PORT) if ready else None
            )
        except ClusterError as error:
            say(str(error))
            return
        if tunnel is None:
            say(f"no pod of {service.instance} can score now")
            return
        with tunnel:
            back = threading.Thread(target=_copy, args=(tunnel, caller), daemon=True)
            back.start()
            _copy(caller, tunnel)
            back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while part := source.recv(_CHUNK_BYTES):
            target.sendall(part)
    for end in (source, target):
        # Both directions end together: HTTP is not spoken over half-closed connections.
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
