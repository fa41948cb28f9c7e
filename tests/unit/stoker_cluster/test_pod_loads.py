"""Asking pods for their load, over real connections of this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from stoker_cluster.pod_loads import PodLoads, parse_load
from stoker_cluster.scaling import PodLoad

GOOD = b'stoker_load 0.4312\nstoker_rejections_total{reason="overloaded"} 7\n'


class Pod:
    """A server that gives one answer to each request."""

    def __init__(self) -> None:
        self.body: bytes | None = GOOD
        self.status = 200
        self.heads: list[bytes] = []
        self.connections = 0
        self.address = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                self.heads.append(await reader.readuntil(b"\r\n\r\n"))
                if self.body is None:
                    await reader.read()
                    return
                head = f"HTTP/1.1 {self.status} Said\r\nContent-Length: {len(self.body)}\r\n\r\n"
                writer.write(head.encode() + self.body)
        except asyncio.IncompleteReadError:
            return
        finally:
            writer.close()


def play(scene: Callable[[Pod], Awaitable[None]]) -> None:
    """Run a scene with a pod."""

    async def run() -> None:
        pod = Pod()
        server = await asyncio.start_server(pod.serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        pod.address = f"{host}:{port}"
        async with server:
            await scene(pod)

    asyncio.run(run())


def test_pods_are_read_over_kept_connections() -> None:
    """A request is for the load alone, and each load has the time of its reading."""

    async def scene(pod: Pod) -> None:
        now_s = iter((10.0, 11.0))
        loads = PodLoads(5, clock_s=lambda: next(now_s))
        first = await loads.read({"digits-a": pod.address})
        second = await loads.read({"digits-a": pod.address})
        await loads.close()
        assert first == {"digits-a": PodLoad(0.4312, 7, 10.0)}
        assert second["digits-a"].read_s == 11.0
        assert pod.connections == 1
        assert pod.heads[0].startswith(b"GET /metrics?only=load HTTP/1.1\r\n")
        assert b"authorization" not in pod.heads[0].lower()

    play(scene)


@pytest.mark.parametrize(
    "change",
    [{"body": b"<html>"}, {"status": 503}, {"body": b"stoker_load much"}, {"body": None}],
    ids=["nonsense", "refused", "no number", "nothing"],
)
def test_pod_without_a_load_keeps_its_last(change: dict[str, Any]) -> None:
    """The load keeps the time of its reading, so that it grows stale; the other pods do not wait."""

    async def scene(pod: Pod) -> None:
        loads = PodLoads(0.2, clock_s=lambda: 10.0)
        known = await loads.read({"digits-a": pod.address})
        for name, value in change.items():
            setattr(pod, name, value)
        assert await loads.read({"digits-a": pod.address}) == known
        assert await loads.read({"digits-b": pod.address}) == {}, "that is another one"
        assert await loads.read({"digits-a": pod.address}) == {}, "and the first was gone"
        await loads.close()

    play(scene)


def test_a_pod_that_is_not_there_says_nothing() -> None:
    """Nobody listens at its address; the pod beside it is read."""

    async def scene(pod: Pod) -> None:
        loads = PodLoads(5, clock_s=lambda: 10.0)
        loads_by_pod = await loads.read({"gone": "127.0.0.1:1", "digits-a": pod.address})
        await loads.close()
        assert set(loads_by_pod) == {"digits-a"}

    play(scene)


def test_the_key_is_read_at_each_look(tmp_path: Path) -> None:
    """A mounted Secret changes."""

    async def scene(pod: Pod) -> None:
        file = tmp_path / "primary"
        loads = PodLoads(5, file)
        for key in ("first", "second"):
            file.write_text(f"{key}\n")
            await loads.read({"digits-a": pod.address})
        await loads.close()
        assert [
            f"Bearer {key}".encode() in head for key, head in zip(("first", "second"), pod.heads, strict=True)
        ]

    play(scene)


@pytest.mark.parametrize(
    ("text", "load"),
    [
        (GOOD.decode(), (0.4312, 7)),
        ("# a comment\nstoker_load 1e-05\nother 3\n" + GOOD.decode().splitlines()[1], (1e-05, 7)),
        ("stoker_load 0.5\n", None),
        ("", None),
        ('stoker_load 0.5\nstoker_rejections_total{reason="overloaded"} 7.5\n', None),
    ],
)
def test_load_of_a_server_is_parsed(text: str, load: tuple[float, int] | None) -> None:
    """Both values are read, or none; other lines are skipped."""
    assert parse_load(text.splitlines()) == load
