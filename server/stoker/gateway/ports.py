"""The ports of a frontend: HTTP, and gRPC where it is on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from stoker.gateway.listeners.tls import TlsListener

if TYPE_CHECKING:
    from stoker.control.frontend_messages import GrpcRules
    from stoker.gateway.gateway import Gateway
    from stoker.gateway.grpc.server import GrpcServer
    from stoker.gateway.listeners.acceptor import Peers
    from stoker.gateway.listeners.listener import Listener
    from stoker.metrics.memory import MetricPage


class Ports:
    """Opens and closes all ports together.

    Attributes:
        http: The listener for HTTP.
    """

    def __init__(
        self,
        gateway: Gateway,
        page: MetricPage,
        http: Listener,
        grpc_rules: GrpcRules | None,
        peers: Peers | None,
    ) -> None:
        """Begin with closed ports.

        Args:
            grpc_rules: The settings of gRPC; None where it is off.
            peers: The frontends that share connections; None if there is only one.
        """
        self.http = http
        self._gateway = gateway
        self._page = page
        self._grpc_rules = grpc_rules
        self._grpc: GrpcServer | None = None
        self._peers = peers
        self._left = False

    async def open(self) -> bool:
        """Begin to accept connections; False if another server has the port already."""
        if self._left:
            return False
        await self.http.start()
        if self._grpc_rules is not None:
            self._grpc = self._create_grpc_server(self._grpc_rules)
            await self._grpc.start()
        if self._peers is not None:
            self._peers.start()
        if self._gateway.later is not None:
            self._gateway.later.runner.start()
        return True

    def leave(self) -> None:
        """Stop accepting: another server listens on the same sockets."""
        self._left = True
        self.http.leave_port()

    async def close(self, timeout_s: float) -> int:
        """Accept nothing new and answer what has come; return how many requests were cut off after `timeout_s`."""
        loop = asyncio.get_running_loop()
        calls = None if self._grpc is None else loop.create_task(self._grpc.stop(timeout_s))
        later = self._gateway.later
        runs = None if later is None else loop.create_task(later.runner.stop(timeout_s))
        await self.http.stop_listening()
        cut_off = await self.http.finish(timeout_s)
        if runs is not None:
            await runs
        return cut_off if calls is None else cut_off + await calls

    def _create_grpc_server(self, rules: GrpcRules) -> GrpcServer:
        # Imported only where it is on: it would cost every frontend its memory.
        from stoker.gateway.grpc.server import GrpcServer

        return GrpcServer(
            self._gateway,
            rules.address,
            max_message_bytes=rules.max_message_bytes,
            tls=None if rules.tls is None else TlsListener(rules.tls, "grpc", self._page),
            connection_age_s=rules.connection_age_s,
            count_refused=self._page.count_accept_failure,
            peers=self._peers,
        )
