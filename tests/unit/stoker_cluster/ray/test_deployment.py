"""The commands of `stoker ray` against a puppet of Ray: actors are made, asked, drained and ended."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stoker import cli
from stoker.errors import LoadFailed, OperatorError, UnknownModel
from stoker_cluster.ray import deployment
from stoker_cluster.ray.replica import ReplicaStatus, ServiceSpec

SPEC = ServiceSpec("digits", ("/models/digits.onnx", "--name", "digits"), 8080, 1.0)


class ActorDied(Exception):
    """The error of Ray for an actor that is gone."""


class PuppetRay:
    """Actors that answer at once, unless a test says otherwise.

    Attributes:
        actors: Those that are there, by name: the options that they were made with.
        waiting: Numbers of replicas that never answer.
        failing: What the replicas of these numbers raise.
        drained: Names, in their order.
    """

    exceptions = SimpleNamespace(RayActorError=ActorDied, RayError=ActorDied)

    def __init__(self) -> None:
        self.actors: dict[str, dict[str, Any]] = {}
        self.waiting: set[int] = set()
        self.failing: dict[int, str] = {}
        self.drained: list[str] = []
        self.spec: ServiceSpec | None = None
        self.util = SimpleNamespace(list_named_actors=lambda: list(self.actors))

    def remote(self, _: type) -> Any:
        """Make actors of a class."""

        def options(**given: Any) -> Any:
            def make(spec: ServiceSpec, number: int) -> None:
                self.spec = spec
                self.actors[given["name"]] = given | {"number": number}

            return SimpleNamespace(remote=make)

        return SimpleNamespace(options=options)

    def get_actor(self, name: str) -> Any:
        """A handle, whose methods give references: here functions."""
        number = int(name.rpartition(":")[2])
        if name not in self.actors:
            raise ValueError(f"Failed to look up actor with name '{name}'.")

        def status() -> ReplicaStatus:
            if number in self.failing:
                self.actors.pop(name)
                raise ActorDied(self.failing[number])
            return ReplicaStatus(number, "ready", f"http://node:{8080 + number}/score", gpus=(str(number),))

        def method(function: Callable[[], Any]) -> Any:
            return SimpleNamespace(remote=lambda: (number, function))

        return SimpleNamespace(
            name=name,
            status=method(status),
            spec=method(lambda: self.spec),
            drain=SimpleNamespace(remote=lambda: self.drained.append(name) or (number, lambda: 0)),
        )

    def wait(self, references: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        """Split the references into answered and waiting ones."""
        assert (num_returns, timeout > 0) == (len(references), True)
        ready = [each for each in references if each[0] not in self.waiting]
        return ready, [each for each in references if each not in ready]

    def get(self, references: Any, timeout: float = 1) -> Any:
        """Their answers."""
        return [each[1]() for each in references] if isinstance(references, list) else references[1]()

    def kill(self, actor: Any, no_restart: bool) -> None:
        """End an actor for good."""
        assert no_restart
        del self.actors[actor.name]


@pytest.fixture
def ray() -> PuppetRay:
    """A cluster without services."""
    return PuppetRay()


def test_up_makes_detached_actors_that_are_made_again(ray: PuppetRay) -> None:
    """Spread over the nodes, one for each replica, with its GPUs; a service is started once."""
    assert [status.number for status in deployment.up(ray, SPEC, 3)] == [0, 1, 2]
    assert list(ray.actors) == ["digits:0", "digits:1", "digits:2"]
    made = ray.actors["digits:2"]
    assert (made["lifetime"], made["max_restarts"], made["num_gpus"]) == ("detached", -1, 1.0)
    assert made["scheduling_strategy"] == "SPREAD"
    with pytest.raises(OperatorError, match="there already"):
        deployment.up(ray, SPEC, 1)


def test_scale_makes_the_missing_and_drains_the_last(ray: PuppetRay) -> None:
    """Numbers that are free are taken first; those that go are drained before they end."""
    deployment.up(ray, SPEC, 3)
    del ray.actors["digits:1"]
    assert [status.number for status in deployment.scale(ray, "digits", 4)] == [0, 1, 2, 3]
    assert [status.number for status in deployment.scale(ray, "digits", 2)] == [0, 1]
    assert ray.drained == ["digits:2", "digits:3"]
    assert deployment.down(ray, "digits") == 2
    assert ray.actors == {}
    with pytest.raises(UnknownModel, match="no service digits on this cluster, but: none"):
        deployment.status(ray, "digits")


def test_status_does_not_wait_for_replicas(ray: PuppetRay) -> None:
    """A silent server starts or waits for a node; a gone one is lost."""
    deployment.up(ray, SPEC, 3)
    ray.waiting, ray.failing = {1}, {2: "gone"}
    assert [status.state for status in deployment.status(ray, "digits")] == ["ready", "starting", "lost"]
    assert deployment.services(ray) == ["digits"]


def test_a_server_that_does_not_start_takes_the_others_along(ray: PuppetRay) -> None:
    """The message is the server's own, without the traceback around it."""
    ray.failing = {1: "a traceback\nstoker.errors.LoadFailed: the server ended with exit code 3"}
    with pytest.raises(LoadFailed, match=r"^digits does not start: the server ended with exit code 3$"):
        deployment.up(ray, SPEC, 2)
    assert ray.actors == {}


def test_replica_without_a_node_is_reported(ray: PuppetRay) -> None:
    """The error has the resources that the replica waits for, and the replica keeps waiting."""
    ray.waiting = {1}
    with pytest.raises(
        OperatorError, match="1 of 2 replicas of digits are ready, the others wait for a node with 1"
    ):
        deployment.up(ray, SPEC, 2)
    assert len(ray.actors) == 2


def test_the_commands(
    ray: PuppetRay, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They say what each server is; keys are the same for all, and made where there are none."""

    class Connected:
        def __init__(self, address: str | None) -> None:
            assert address == "head:6379"

        def __enter__(self) -> PuppetRay:
            return ray

        def __exit__(self, *_: object) -> None:
            return None

    monkeypatch.setattr(deployment, "connected", Connected)
    for name in ("STOKER_PRIMARY_KEY", "STOKER_SECONDARY_KEY"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "digits.onnx").touch()
    where = ["--address", "head:6379"]
    up = [
        "ray",
        "up",
        str(tmp_path / "digits.onnx"),
        "--workspace",
        str(tmp_path / "w"),
        "--replicas",
        "2",
        *where,
    ]
    assert cli.main([*up, "--option=--no-auth"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "0  ready     http://node:8080/score  GPU 0",
        "1  ready     http://node:8081/score  GPU 1",
    ]
    assert ray.spec is not None
    assert ray.spec.arguments == (str(tmp_path / "digits.onnx"), "--name", "digits", "--no-auth")
    assert set(ray.spec.environ) == {"STOKER_PRIMARY_KEY", "STOKER_SECONDARY_KEY"}
    assert cli.main(["ray", "status", *where]) == 0
    assert cli.main(["ray", "status", "digits", "--json", *where]) == 0
    listed, statuses = capsys.readouterr().out.splitlines()
    assert (listed, [each["number"] for each in json.loads(statuses)]) == ("digits", [0, 1])
    assert cli.main(["ray", "scale", "digits", "1", *where]) == 0
    assert cli.main(["ray", "scale", "digits", "0", *where]) == 2
    assert cli.main(["ray", "down", "digits", *where]) == 0
    assert capsys.readouterr().out.endswith("digits has ended, with 1 server\n")
    assert cli.main([*up[:2], "mnist:3", "--workspace", str(tmp_path / "w"), *where]) == 0
    assert ray.spec.arguments == ("--model", "mnist:3", "--workspace", str(tmp_path / "w"))


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says in one sentence how to install it."""
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(OperatorError, match=r"this needs Ray .*install"), deployment.connected(None):
        pass


def test_address_without_a_listener_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an argument or RAY_ADDRESS; Ray itself would try again for minutes."""
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace())
    with socket.socket() as taken:
        # It has the port, and does not listen.
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        for given in (address, None):
            with (
                pytest.raises(OperatorError, match=f"no Ray cluster answers at {address}"),
                deployment.connected(given),
            ):
                pass
