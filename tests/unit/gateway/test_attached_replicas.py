"""The replicas of a frontend's services."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import socket
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.puppets import ROWS, metric_memory, puppet_service

from stoker.arena import Arena
from stoker.control.frontend_messages import AttachReplica
from stoker.errors import LoadFailed
from stoker.gateway import attached_replicas
from stoker.gateway.attached_replicas import AttachedReplicas
from stoker.gateway.gateway import Gateway
from stoker.gateway.model_directory import ModelDirectory
from stoker.tensors import Signature, TensorSpec
from stoker.wire.texts import text_tensors


class Stage:
    """Replicas of one service.

    Attributes:
        notified: Counts notifications of a changed readiness.
        outgrown: The generations of replicas that need larger rows, with the bytes of answers.
    """

    def __init__(self) -> None:
        memory = metric_memory()
        self.service = puppet_service("m", memory)
        gateway = Gateway(ModelDirectory({"m": self.service}), memory)
        self.notified: list[bool] = []
        gateway.readiness.subscribe(lambda: self.notified.append(self.service.ready))
        self.outgrown: list[tuple[int, int]] = []
        self.replicas = AttachedReplicas(gateway, lambda *outgrown: self.outgrown.append(outgrown))
        self.ends: list[socket.socket] = []

    def attach(self, generation: int, rows: int = 4, signature: Signature = ROWS) -> None:
        """Attach a replica, and keep the device's end of its doorbell."""
        near, far = socket.socketpair()
        self.ends.append(far)
        replica = AttachReplica(0, generation, signature, rows)
        self.replicas.attach(self.service, replica, Arena.create(signature, rows), near.detach())


def play(scene: Callable[[Stage], Awaitable[None]]) -> None:
    """Run a scene on an event loop."""

    async def perform() -> None:
        stage = Stage()
        try:
            await scene(stage)
        finally:
            for exchange in stage.replicas.exchanges.values():
                exchange.close()
            for end in stage.ends:
                end.close()

    with np.errstate(over="raise"):
        asyncio.run(perform())


def test_attach_and_detach_change_readiness() -> None:
    """Each notifies the listeners."""

    async def scene(stage: Stage) -> None:
        stage.attach(3)
        assert list(stage.replicas.exchanges) == [3]
        stage.replicas.detach(3)
        stage.replicas.detach(4)
        assert (stage.notified, stage.replicas.exchanges) == ([True, False], {})

    play(scene)


def test_attach_of_the_same_generation_replaces_its_exchange() -> None:
    """The replica that was outgrown is named by its generation."""

    async def scene(stage: Stage) -> None:
        stage.attach(1)
        (old,) = stage.service.exchanges
        stage.replicas.request_larger(old, 4096)
        assert stage.outgrown == [(1, 4096)]
        stage.attach(1, rows=8)
        (new,) = stage.service.exchanges
        assert stage.replicas.exchanges == {1: new}
        assert new.arena.capacity == 8
        old.close()

    play(scene)


def test_replicas_of_a_service_share_its_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is loaded once; again if the files of the model are others, or if the load failed."""
    loads: list[str] = []

    def load(text: str) -> str:
        loads.append(text)
        if text == "broken":
            raise LoadFailed("no tokenizer")
        return text

    monkeypatch.setattr(attached_replicas, "Tokenizing", load)
    signature = dataclasses.replace(
        ROWS, inputs=(TensorSpec("text", "int32", (9,)),), callers=text_tensors(())
    )

    async def scene(stage: Stage) -> None:
        found: Any = SimpleNamespace(text="broken", file_key=lambda: 1)
        stage.service.facts = msgspec.structs.replace(stage.service.facts, deployment=found)
        for generation, (text, key) in enumerate((("broken", 1), ("a", 1), ("a", 1), ("a", 2))):
            found.text, found.file_key = text, lambda key=key: key
            stage.attach(generation, signature=signature)
            exchange: Any = stage.replicas.exchanges[generation]
            await asyncio.wait((exchange._tokenizing,))
        assert loads == ["broken", "a", "a"]
        first, second, third = (stage.replicas.exchanges[place] for place in (1, 2, 3))
        assert first._tokenizing is second._tokenizing is not third._tokenizing  # type: ignore[attr-defined]

    play(scene)


def test_attach_without_an_arena_closes_both_descriptors() -> None:
    """Nothing else changes."""

    async def scene(stage: Stage) -> None:
        near, far = socket.socketpair()
        stage.ends.append(far)
        bad_fd = os.open("/dev/null", os.O_RDWR)
        with pytest.raises(OSError, match="No such device"):
            stage.replicas.attach(stage.service, AttachReplica(0, 1, ROWS, 4), bad_fd, near.detach())
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(bad_fd)
        assert (stage.replicas.exchanges, stage.notified) == ({}, [])

    play(scene)


def test_forget_removes_only_the_exchanges_of_a_service() -> None:
    """Exchanges of others stay."""

    async def scene(stage: Stage) -> None:
        stage.attach(1)
        stage.attach(2)
        first, second = stage.service.exchanges
        stage.replicas.forget([first])
        assert stage.replicas.exchanges == {2: second}
        assert not stage.replicas.has_state(stage.service)
        first.close()

    play(scene)
