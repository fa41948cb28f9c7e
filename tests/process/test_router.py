"""`stoker router` with a real HAProxy, in front of puppets that answer with their name."""

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import pytest
from tests.live_server import free_port, wait_until

from stoker.errors import OperatorError
from stoker_cluster.autoscaler import Autoscaler
from stoker_cluster.endpoints import NamedServers, Server, ServerSource
from stoker_cluster.haproxy import find_haproxy
from stoker_cluster.pod_loads import PodLoads
from stoker_cluster.router import Router
from stoker_cluster.router_settings import RouterSettings
from stoker_cluster.scale_access import DeploymentState
from stoker_cluster.scaling import ScalingPolicy

LOOK_S = 0.05
CHOICE = "azureml-model-deployment"


class Puppet:
    """A server that answers each request with its name; it may refuse, and not be ready."""

    def __init__(self, name: str) -> None:
        self.name, self.port, self.status, self.requests = name, free_port(), 200, 0
        self.under_way = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                status = 200
                if b"/v2/health/ready" not in head:
                    self.requests += 1
                    if b" /slow " in head:
                        self.under_way.set()
                        await self.may_answer.wait()
                    status = self.status
                body = self.name.encode()
                writer.write(b"HTTP/1.1 %d -\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body))
        writer.close()

    async def stop(self) -> None:
        """Refuse connections from now on."""
        self._server.close()
        await self._server.wait_closed()


class Routed:
    """A router that runs, with its addresses."""

    def __init__(self, **settings: Any) -> None:
        ports = {"port": free_port(), "metrics_port": free_port(), "drain_grace_s": 0.0, "hold_s": 20.0}
        self.settings = RouterSettings(**{**ports, **settings})
        self.stop, self.give_up = asyncio.Event(), asyncio.Event()

    def change(self, **settings: Any) -> None:
        """Have other settings from the next look on."""
        fields = {name: getattr(self.settings, name) for name in self.settings.__slots__}
        self.settings = RouterSettings(**{**fields, **settings})

    async def ask(self, path: str = "/score", *, own: bool = False, **headers: str) -> tuple[int, str]:
        """Send one request on a connection of its own; returns status and body."""
        answers = await self.ask_in_a_row([(path, headers)], own=own)
        return answers[0]

    async def ask_until_closed(self) -> bytes:
        """Send one request, and read until the router closes the connection; returns the body."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.settings.port)
        writer.write(b"GET /score HTTP/1.1\r\nHost: h\r\n\r\n")
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        assert b"connection: close" in head.lower().split(b"\r\n")
        return body

    async def has_one_request(self) -> bool:
        """Whether its HAProxy says that there is one."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.settings.metrics_port)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        metrics = await reader.read()
        writer.close()
        return b'haproxy_backend_current_sessions{proxy="servers"} 1\n' in metrics

    async def refuses(self) -> bool:
        """Whether it takes no connections."""
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.settings.port)
        except OSError:
            return True
        writer.close()
        return False

    async def ask_in_a_row(
        self, requests: list[tuple[str, dict[str, str]]], *, own: bool = False
    ) -> list[tuple[int, str]]:
        """Send requests on one connection, each when the one before has its answer.

        Not before: HAProxy may answer 400 to what stands behind a request that it holds and tries again.
        """
        port = self.settings.metrics_port if own else self.settings.port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        answers = []
        for path, headers in requests:
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            writer.write(f"GET {path} HTTP/1.1\r\nHost: h\r\n{lines}\r\n".encode())
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = next(
                (
                    int(line.partition(":")[2])
                    for line in head.split("\r\n")
                    if line.lower().startswith("content-length")
                ),
                None,
            )
            body = b"" if length is None else await reader.readexactly(length)
            answers.append((int(head.split()[1]), body.decode()))
        writer.close()
        return answers


@contextlib.asynccontextmanager
async def routed(source: ServerSource | None = None, /, **settings: Any) -> AsyncIterator[Routed]:
    """Run a router, and end it as SIGTERM does; a source knows its servers in the place of its settings."""
    router = Routed(**settings)
    process = Router(
        find_haproxy(), lambda: router.settings, lambda now: source or NamedServers(now.servers or {}), LOOK_S
    )
    running = asyncio.create_task(process.run(router.stop, router.give_up))
    try:
        while True:
            assert not running.done() or await running is None
            with contextlib.suppress(OSError):
                await router.ask("/live", own=True)
                break
            await asyncio.sleep(0.01)
        yield router
    finally:
        router.stop.set()
        await running


def servers(*puppets: Puppet) -> Mapping[str, tuple[str, ...]]:
    """The setting that names these puppets."""
    return {"": tuple(f"127.0.0.1:{puppet.port}" for puppet in puppets)}


async def eventually(holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait until something holds."""
    while True:
        if await holds():
            return
        await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def needs_haproxy() -> None:
    """Without HAProxy there is nothing to test."""
    try:
        find_haproxy()
    except OperatorError as error:
        pytest.skip(str(error))


def test_the_only_server_is_replaced_without_a_lost_request() -> None:
    """Requests that find no server wait for the next one, and one that is under way is answered by its own."""

    async def replace() -> None:
        old, new = Puppet("old"), Puppet("new")
        await old.start()
        async with routed(servers=servers(old)) as router:
            assert await router.ask() == (200, "old")
            last = asyncio.create_task(router.ask("/slow"))
            await old.under_way.wait()
            await old.stop()
            callers = [asyncio.create_task(router.ask()) for _ in range(50)]
            router.change(servers=servers(new))
            await asyncio.sleep(0)
            await new.start()
            assert await asyncio.gather(*callers) == [(200, "new")] * 50
            old.may_answer.set()
            assert await last == (200, "old")
        await new.stop()

    asyncio.run(replace())


class Known:
    """A fixed set of servers, in the place of names."""

    def __init__(self) -> None:
        self.servers: frozenset[Server] = frozenset()

    async def find_servers(self) -> Mapping[str, frozenset[Server]]:
        """Return those that there are now."""
        return {"": self.servers}


@pytest.mark.parametrize("ends", [True, False], ids=["it ends", "its HAProxy is replaced"])
def test_a_request_that_waits_finds_the_server_that_comes(
    ends: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A HAProxy that takes no new connections also learns of servers, as long as requests wait there."""
    caplog.set_level("INFO")

    async def has_logged_change() -> bool:
        return "the settings have changed" in caplog.text

    async def wait() -> None:
        puppet, known = Puppet("p"), Known()
        await puppet.start()
        async with routed(known, servers={"": ()}) as router:
            waiting = asyncio.create_task(router.ask())
            await eventually(router.has_one_request)
            if ends:
                router.stop.set()
                await eventually(router.refuses)
            else:
                router.change(timeout_ms=5_000)
                await eventually(has_logged_change)
            known.servers = frozenset({Server("127.0.0.1", puppet.port)})
            assert await waiting == (200, "p")
        await puppet.stop()

    asyncio.run(wait())


class NoPods:
    """A Deployment without pods, whose first one is a puppet."""

    def __init__(self, known: Known, pod: Puppet, metrics: str) -> None:
        self.replicas = 0
        self._known, self._pod, self._metrics = known, pod, metrics

    def read_state(self) -> DeploymentState:
        """Return how many there are, and the router."""
        return DeploymentState(self.replicas, ScalingPolicy(0, 2, 70, 0.05), {}, (self._metrics,))

    def scale(self, replicas: int, before: int) -> bool:
        """Start the pod."""
        assert before == self.replicas
        self.replicas = replicas
        self._known.servers = frozenset({Server("127.0.0.1", self._pod.port)})
        return True


def test_a_request_to_no_pods_waits_until_the_autoscaler_has_started_one() -> None:
    """The autoscaler asks the router; without a request it starts none."""

    async def wait() -> None:
        pod, known, loads = Puppet("p"), Known(), PodLoads(5.0)
        await pod.start()
        async with routed(known, servers={"": ()}) as router:
            deployment: Any = NoPods(known, pod, f"127.0.0.1:{router.settings.metrics_port}")
            scaler = Autoscaler("digits", deployment, loads)
            await scaler.step()
            assert deployment.replicas == 0
            waiting = asyncio.create_task(router.ask())
            await eventually(router.has_one_request)
            await scaler.step()
            assert deployment.replicas == 1
            assert await waiting == (200, "p")
        await loads.close()
        await pod.stop()

    asyncio.run(wait())


def test_weights_are_kept_exactly_and_the_header_chooses(caplog: pytest.LogCaptureFixture) -> None:
    """Of a thousand requests each version has its share, who names one gets it, and other weights count at once."""
    caplog.set_level("INFO")

    async def share() -> None:
        puppets = {"a": Puppet("a"), "b": Puppet("b")}
        for puppet in puppets.values():
            await puppet.start()
        listed = {name: (f"127.0.0.1:{puppet.port}",) for name, puppet in puppets.items()}
        async with routed(servers=listed, traffic={"a": 0, "b": 10}) as router:
            answers = await router.ask_in_a_row([("/score", {})] * 1000)
            assert Counter(answers) == {(200, "a"): 900, (200, "b"): 100}
            assert await router.ask(**{CHOICE: "b"}) == (200, "b")
            status, body = await router.ask(**{CHOICE: "c"})
            assert (status, "unknown_service" in body) == (404, True)
            router.change(traffic={"a": 0, "b": 100.0})
            while "the settings have changed" not in caplog.text:
                await router.ask()
            assert await router.ask_in_a_row([("/score", {})] * 20) == [(200, "b")] * 20
        for puppet in puppets.values():
            await puppet.stop()

    asyncio.run(share())


def test_a_new_haproxy_takes_over_without_a_lost_request(caplog: pytest.LogCaptureFixture) -> None:
    """The setting needs a new HAProxy: no caller is refused, and requests under way are answered."""
    caplog.set_level("INFO")

    async def take_over() -> None:
        puppet = Puppet("p")
        await puppet.start()
        async with routed(servers=servers(puppet)) as router:
            slow = asyncio.create_task(router.ask("/slow"))
            await puppet.under_way.wait()
            router.change(timeout_ms=5_000)
            while "the settings have changed" not in caplog.text:
                assert await router.ask() == (200, "p")
            assert await router.ask() == (200, "p")
            puppet.may_answer.set()
            assert await slow == (200, "p")
        await puppet.stop()

    asyncio.run(take_over())


def test_a_refusal_is_tried_elsewhere_but_not_without_end() -> None:
    """503 of one server goes to another; where all refuse, a few tries are made, and soon one only."""

    async def refuse() -> None:
        puppet = Puppet("p")
        puppet.status = 503
        await puppet.start()
        async with routed(servers=servers(puppet)) as router:
            for _ in range(20):
                assert (await router.ask())[0] == 503
            before = puppet.requests
            answers = await router.ask_in_a_row([("/score", {})] * 20)
            assert {status for status, _ in answers} == {503}
            assert puppet.requests - before <= 100
        await puppet.stop()

    asyncio.run(refuse())


def test_a_refusal_is_tried_elsewhere_though_the_body_came_late() -> None:
    """HAProxy waits for the whole body: it could not repeat a request of which it has sent a part."""

    async def refuse_late_bodies() -> None:
        puppets = Puppet("refuses"), Puppet("answers")
        puppets[0].status = 503
        for puppet in puppets:
            await puppet.start()
        async with routed(servers=servers(*puppets), threads=1) as router:
            for _ in range(10):
                reader, writer = await asyncio.open_connection("127.0.0.1", router.settings.port)
                writer.write(b"POST /score HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n")
                await writer.drain()
                assert await router.ask() == (200, "answers")
                writer.write(b"[]")
                assert (await reader.readline()).split()[1] == b"200"
                writer.close()
        assert puppets[0].requests
        for puppet in puppets:
            await puppet.stop()

    asyncio.run(refuse_late_bodies())


def test_draining_router_closes_connections_with_their_next_answer() -> None:
    """While it drains, /ready says no, and each answer is the last of its connection; the second signal ends it."""

    async def drain() -> None:
        puppet = Puppet("p")
        await puppet.start()
        async with routed(servers=servers(puppet), drain_grace_s=60.0) as router:
            assert (await router.ask("/ready", own=True))[0] == 200
            router.stop.set()
            while (await router.ask("/ready", own=True))[0] != 503:
                assert await router.ask() == (200, "p")
            assert await router.ask() == (200, "p")
            assert await router.ask_until_closed() == b"p"
            assert (await router.ask("/live", own=True))[0] == 200
            router.give_up.set()
        await puppet.stop()

    asyncio.run(drain())


def test_settings_that_cannot_be_leave_those_of_before(caplog: pytest.LogCaptureFixture) -> None:
    """The log says so, and when they can be, they count."""

    async def change() -> None:
        puppet = Puppet("p")
        await puppet.start()
        async with routed(servers=servers(puppet), traffic=None) as router:
            assert await router.ask() == (200, "p")
            router.change(servers={"a": ()}, traffic={"a": 100.001})
            while "the settings of before stay: traffic of a is 100.001" not in caplog.text:
                assert await router.ask() == (200, "p")
        await puppet.stop()

    asyncio.run(change())


def test_haproxy_ends_with_a_killed_router() -> None:
    """Nobody would tell it of servers any more, and a successor would share the port with it."""
    port, own = free_port(), free_port()
    command = [sys.executable, "-m", "stoker.cli", "router", "--servers", "127.0.0.1:1"]
    options = ["--port", str(port), "--metrics-port", str(own)]

    def listens() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return True
        return False

    with subprocess.Popen([*command, *options], stderr=subprocess.DEVNULL) as router:
        wait_until(listens, "it listens")
        router.send_signal(signal.SIGKILL)
    wait_until(lambda: not listens(), "nobody listens")
