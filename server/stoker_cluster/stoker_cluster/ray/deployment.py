"""A service on Ray: its replicas are detached actors that Ray keeps alive. Starts, lists and drains them."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from stoker.errors import LoadFailed, OperatorError, UnknownModel
from stoker.system.extras import how_to_install
from stoker_cluster.ray.replica import Replica, ReplicaStatus, ServiceSpec

_NAMESPACE: Final = "stoker"
_LOOK_S: Final = 5.0
_DRAIN_S: Final = 120.0


@contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """Connect to a Ray cluster within the body.

    Args:
        address: Its address; None for RAY_ADDRESS, or the cluster of this machine.

    Yields:
        The module `ray`.
    """
    try:
        import ray
    except ImportError as error:
        raise OperatorError(f"this needs Ray ({error}); {how_to_install('ray')}") from error
    named = address or os.environ.get("RAY_ADDRESS") or "auto"
    _check_reachable(named)
    try:
        ray.init(address=named, namespace=_NAMESPACE, log_to_driver=False, logging_level=logging.WARNING)
    except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        raise OperatorError(
            f"no Ray cluster answers ({error}); start one with ray start --head, or give its --address"
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Refuse an address on which nothing listens, because Ray would wait for minutes."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or "/" in host:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _LOOK_S).close()
    except OSError as error:
        raise OperatorError(
            f"no Ray cluster answers at {address} ({error}); start one with ray start --head, or correct the address"
        ) from error


def up(ray: Any, spec: ServiceSpec, replicas: int) -> list[ReplicaStatus]:
    """Start the replicas of a service, spread over the nodes, and wait until they are ready.

    Raises:
        OperatorError: The service exists already, or not all replicas become ready in time.
        LoadFailed: A server does not start; then all replicas are removed.
    """
    if _numbers(ray, spec.name):
        raise OperatorError(
            f"{spec.name} is there already; change it with stoker ray scale, or end it with stoker ray down"
        )
    _start(ray, spec, range(replicas))
    return _wait(ray, spec, range(replicas))


def status(ray: Any, name: str) -> list[ReplicaStatus]:
    """Return the states of a service's replicas.

    Raises:
        UnknownModel: There is no such service.
    """
    return _statuses(ray, name, _known(ray, name), _LOOK_S)


def services(ray: Any) -> list[str]:
    """Return the names of all services."""
    return sorted({name.rpartition(":")[0] for name in ray.util.list_named_actors() if ":" in name})


def scale(ray: Any, name: str, replicas: int) -> list[ReplicaStatus]:
    """Change the number of replicas: start further ones and wait for them, or drain those with the highest numbers.

    Raises:
        UnknownModel: There is no such service.
        OperatorError: Further replicas do not become ready.
    """
    there = _known(ray, name)
    more = [number for number in range(len(there) + replicas) if number not in there][
        : max(replicas - len(there), 0)
    ]
    if more:
        spec: ServiceSpec = ray.get(_actor(ray, name, there[0]).spec.remote(), timeout=_DRAIN_S)
        _start(ray, spec, more)
        _wait(ray, spec, more)
    _drain(ray, name, there[replicas:])
    return status(ray, name) if replicas else []


def down(ray: Any, name: str) -> int:
    """Drain all replicas, and remove the service; returns the number of replicas.

    Raises:
        UnknownModel: There is no such service.
    """
    there = _known(ray, name)
    _drain(ray, name, there)
    return len(there)


def _start(ray: Any, spec: ServiceSpec, numbers: Sequence[int]) -> None:
    actor = ray.remote(Replica)
    for number in numbers:
        actor.options(
            name=f"{spec.name}:{number}",
            lifetime="detached",
            max_restarts=-1,
            num_gpus=spec.num_gpus,
            num_cpus=spec.num_cpus,
            scheduling_strategy="SPREAD",
        ).remote(spec, number)


def _wait(ray: Any, spec: ServiceSpec, numbers: Sequence[int]) -> list[ReplicaStatus]:
    calls = {_actor(ray, spec.name, number).status.remote(): number for number in numbers}
    ready, waiting = ray.wait(list(calls), num_returns=len(calls), timeout=spec.ready_within_s + _LOOK_S)
    try:
        statuses: list[ReplicaStatus] = ray.get(ready)
    except ray.exceptions.RayActorError as error:
        _drain(ray, spec.name, numbers)
        raise LoadFailed(f"{spec.name} does not start: {_reason(error)}") from error
    if waiting:
        raise OperatorError(
            f"{len(ready)} of {len(calls)} replicas of {spec.name} are ready, the others wait for a node with "
            f"{spec.num_gpus:g} GPUs and {spec.num_cpus:g} CPUs to spare; see ray status, or stoker ray down "
            f"{spec.name}"
        )
    return sorted(statuses, key=lambda status: status.number)


def _reason(error: Exception) -> str:
    """The actor's error message, without what Ray adds."""
    _, _, message = str(error).partition("stoker.errors.LoadFailed: ")
    return message or str(error)


def _drain(ray: Any, name: str, numbers: Sequence[int]) -> None:
    actors = []
    for number in numbers:
        # An actor whose constructor has failed cannot be found any more.
        with suppress(ValueError):
            actors.append(_actor(ray, name, number))
    calls = [actor.drain.remote() for actor in actors]
    if calls:
        # Actors that still load, or have ended, do not respond.
        ray.wait(calls, num_returns=len(calls), timeout=_DRAIN_S)
    for actor in actors:
        ray.kill(actor, no_restart=True)


def _statuses(ray: Any, name: str, numbers: Sequence[int], within_s: float) -> list[ReplicaStatus]:
    calls = {number: _actor(ray, name, number).status.remote() for number in numbers}
    ready, _ = ray.wait(list(calls.values()), num_returns=len(calls), timeout=within_s)
    found = []
    for number, reference in calls.items():
        if reference not in ready:
            found.append(ReplicaStatus(number, "starting"))
            continue
        try:
            found.append(ray.get(reference))
        except ray.exceptions.RayError:
            found.append(ReplicaStatus(number, "lost"))
    return found


def _known(ray: Any, name: str) -> list[int]:
    numbers = _numbers(ray, name)
    if not numbers:
        raise UnknownModel(
            f"there is no service {name} on this cluster, but: {', '.join(services(ray)) or 'none'}"
        )
    return numbers


def _numbers(ray: Any, name: str) -> list[int]:
    """The numbers of a service's replicas, ascending."""
    named = (each.rpartition(":") for each in ray.util.list_named_actors())
    return sorted(int(number) for service, _, number in named if service == name and number.isdecimal())


def _actor(ray: Any, name: str, number: int) -> Any:
    return ray.get_actor(f"{name}:{number}")
