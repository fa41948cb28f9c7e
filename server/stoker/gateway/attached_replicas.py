"""The replicas that are attached to the services of a frontend."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from stoker.arena import Arena
from stoker.gateway.http.threads import run_in_thread
from stoker.gateway.rows.cache import CachedExchange
from stoker.gateway.rows.exchange import ArenaExchange
from stoker.gateway.rows.sequences import SequenceExchange, SequenceReplicas
from stoker.gateway.rows.text_exchange import CachedTextExchange, TextExchange
from stoker.wire.texts import Tokenizing

if TYPE_CHECKING:
    from stoker.control.frontend_messages import AttachReplica
    from stoker.deployment import Deployment
    from stoker.gateway.gateway import Gateway
    from stoker.gateway.rows.ticket import Exchange
    from stoker.gateway.scoring.service import Service

logger = logging.getLogger(__name__)


class AttachedReplicas:
    """The exchanges with all replicas.

    Attributes:
        exchanges: By generation; each load of a replica has its own.
    """

    def __init__(self, gateway: Gateway, on_outgrown: Callable[[int, int], object]) -> None:
        """Begin without replicas.

        Args:
            on_outgrown: Called with the generation of a replica whose answers do not fit its rows, and the bytes
                that they should have; to be answered with an `AttachReplica` that has such rows.
        """
        self.exchanges: dict[int, ArenaExchange] = {}
        self._gateway = gateway
        self._on_outgrown = on_outgrown
        self._sequences: WeakKeyDictionary[Service, SequenceReplicas] = WeakKeyDictionary()
        """The replicas of models with state."""
        self._tokenizers: WeakKeyDictionary[Service, tuple[object, asyncio.Future[Tokenizing]]]
        self._tokenizers = WeakKeyDictionary()

    def has_state(self, service: Service) -> bool:
        """Whether a service's model keeps state between the requests of a sequence."""
        return service in self._sequences

    def attach(self, service: Service, replica: AttachReplica, arena_fd: int, doorbell_fd: int) -> None:
        """Attach a replica, or again with larger rows; takes both descriptors. OSError changes nothing."""
        gateway, generation = self._gateway, replica.generation
        exchange = self._open(service, replica, arena_fd, doorbell_fd)
        outgrown = self.exchanges.get(generation)
        leaving = [] if service.on_demand is None else service.on_demand.leaving
        if outgrown is not None and outgrown in leaving:
            # The model is being unloaded, and its last requests need larger rows.
            leaving[leaving.index(outgrown)] = exchange
        else:
            direct = service.dialect.direct
            service.attach(exchange)
            if direct and not service.dialect.direct:
                # Before the model was known to read heads, the fast path took requests without them.
                gateway.targets.clear_heads()
        if gateway.observers is not None:
            gateway.observers.observe(service)
        if outgrown is not None:
            service.replace(outgrown, exchange)
        self.exchanges[generation] = exchange
        gateway.readiness.notify()

    def detach(self, generation: int) -> None:
        """Record that a replica has ended."""
        exchange = self.exchanges.get(generation)
        if exchange is not None:
            exchange.disconnect()

    def forget(self, exchanges: Collection[Exchange]) -> None:
        """Forget exchanges of a service that leaves them."""
        self.exchanges = {
            generation: exchange
            for generation, exchange in self.exchanges.items()
            if exchange not in exchanges
        }

    def request_larger(self, exchange: Exchange, answer_bytes: int) -> None:
        """Ask for a replica with larger rows, in the place of one whose answers do not fit."""
        generation = next(number for number, known in self.exchanges.items() if known is exchange)
        self._on_outgrown(generation, answer_bytes)

    def _open(
        self, service: Service, replica: AttachReplica, arena_fd: int, doorbell_fd: int
    ) -> ArenaExchange:
        """Map the arena and watch the doorbell; takes ownership of both descriptors, also if this fails."""
        doorbell = socket.socket(fileno=doorbell_fd)
        try:
            # The mapping keeps a descriptor of its own.
            arena = Arena(arena_fd, replica.signature, replica.capacity_rows)
            kind: Callable[..., ArenaExchange] = ArenaExchange
            deployment = service.facts.deployment
            text = None
            if deployment is not None and replica.signature.callers is not None:
                text = self._tokenizer(service, deployment)
            if replica.signature.sequences:
                replicas = self._sequences.setdefault(service, SequenceReplicas(replica.places))
                kind = partial(SequenceExchange, replicas=replicas, place=replica.place)
            elif service.replicas.cache is not None:
                cached = CachedExchange if text is None else partial(CachedTextExchange, tokenizing=text)
                kind = partial(cached, cache=service.replicas.cache, metrics=service.metrics)
            elif text is not None:
                kind = partial(TextExchange, tokenizing=text)
            return kind(
                arena,
                doorbell,
                clock_ns=time.monotonic_ns,
                on_lost=partial(self._on_lost, service, replica.generation),
                loop=asyncio.get_running_loop(),
                by_target=service.limits.by_target,
            )
        except OSError:
            doorbell.close()
            raise
        finally:
            os.close(arena_fd)

    def _tokenizer(self, service: Service, deployment: Deployment) -> asyncio.Future[Tokenizing]:
        """Return the tokenizer of a service, for all of its replicas while the files of the model are the same."""
        key, known = deployment.file_key(), self._tokenizers.get(service)
        if known is None or known[0] != key or (known[1].done() and known[1].exception() is not None):
            loading = asyncio.ensure_future(run_in_thread(Tokenizing, deployment.text))
            known = self._tokenizers[service] = (key, loading)
        return known[1]

    def _on_lost(self, service: Service, generation: int, exchange: Exchange) -> None:
        service.detach(exchange)
        if service.replicas.cache is not None:
            service.replicas.cache.clear()
        self._gateway.readiness.notify()
        if self.exchanges.get(generation) is exchange:
            del self.exchanges[generation]
        logger.warning(
            "a device process of %s has ended; its requests run again elsewhere or get errors", service.name
        )
