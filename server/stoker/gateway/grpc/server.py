"""The gRPC server of one frontend."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from stoker.gateway.gateway import Gateway
from stoker.gateway.grpc.connections import Connections
from stoker.gateway.grpc.health import Health
from stoker.gateway.grpc.messages import POOL, SERVICE
from stoker.gateway.grpc.servicer import Infer, InferenceServicer
from stoker.gateway.scoring.inference import infer as scored

__all__ = ["GrpcServer"]

_LINGER_S: Final = 1.0
_LOOK_S: Final = 0.02
_QUIET_S: Final = 0.25
"""So long no call has begun: what callers had sent before they were sent away has been handed over."""
_UNTOLD_QUIET_S: Final = 1.0
"""The same while some are left who could not be sent away: they read nothing, or a long answer."""
_TLS_PATIENCE_S: Final = 1.0
"""How long to look for such a moment among callers who cannot be sent away."""
_SERVERS: Final = 16
"""How many servers of the library a frontend has, on one port; they share its event loop and the library's threads.
Each of them asks for the next call only when it has been given the last one, a way through two threads and the event
loop. So one server hands calls over singly, and the device's batches have one row, however many callers wait."""


_HANDSHAKE_MS: Final = 10_000
"""A connection that has not begun to speak HTTP/2 by then is closed."""
_IDLE_MS: Final = 300_000
"""So is one on which no call is under way for so long; callers connect anew by themselves when they call again."""
_LOOK_FOR_PEER_MS: Final = 60_000
_SILENT_PEER_MS: Final = 20_000
"""A peer that says nothing for a minute is asked whether it is there; one that does not answer by then has gone."""


class GrpcServer:
    """Answers the calls of one frontend, with health checks and reflection; belongs to one event loop.

    Args:
        gateway: The frontend's services.
        address: `HOST:PORT`; all servers of every frontend listen there, and the kernel spreads connections over
            them (SO_REUSEPORT).
        max_message_bytes: Longest message that is received; how many at once is not limited, see grpc.md.
        certificate: PEM file of the certificate chain; None serves without TLS.
        key: PEM file of its private key.
        connection_age_s: How old connections become, give or take a tenth, by the library's own count; then they
            take no further calls, and end with their last answer. 0 for any age.
        infer: Scores tensors.
    """

    def __init__(
        self,
        gateway: Gateway,
        address: str,
        *,
        max_message_bytes: int,
        certificate: Path | None = None,
        key: Path | None = None,
        connection_age_s: float = 0.0,
        infer: Infer = scored,
    ) -> None:
        self._servicer = InferenceServicer(gateway, infer)
        self._health, described = Health(gateway), _described()
        credentials = None
        self._tls = certificate is not None and key is not None
        if certificate is not None and key is not None:
            pair = (key.read_bytes(), certificate.read_bytes())
            credentials = grpc.ssl_server_credentials([pair])
        self._servers: list[Any] = []
        for _ in range(_SERVERS):
            server = grpc.aio.server(options=_options(max_message_bytes, connection_age_s))
            server.add_generic_rpc_handlers((self._servicer,))
            health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
            reflection.enable_server_reflection(described, server, POOL)
            if credentials is None:
                self.port: int = server.add_insecure_port(address)
            else:
                self.port = server.add_secure_port(address, credentials)
            # Where any port will do, the others join the first.
            address = f"{address.rpartition(':')[0]}:{self.port}"
            self._servers.append(server)

    async def start(self) -> None:
        """Begin to accept."""
        for server in self._servers:
            await server.start()

    async def stop(self, timeout_s: float) -> int:
        """Accept nothing new, answer what is under way, end; return how many were cut off after `timeout_s`."""
        now = asyncio.get_running_loop().time
        deadline_s = now() + timeout_s
        await self._send_callers_away(min(timeout_s, _TLS_PATIENCE_S) if self._tls else timeout_s)
        left_s = max(0.0, deadline_s - now())
        self._health.close()
        stopping = asyncio.ensure_future(self._stop(left_s + _LINGER_S))
        cut_off = await self._servicer.finish(left_s)
        # The last answers are on their way; those who ask for reflection would stay for ever.
        await self._stop(_LINGER_S if not cut_off else None)
        await stopping
        return cut_off

    async def _send_callers_away(self, timeout_s: float) -> None:
        """Return when nobody calls any more: from then on the library may be stopped, which kills what arrives."""
        now = asyncio.get_running_loop().time
        connections, servicer = Connections(self.port), self._servicer
        connections.stop_accepting()
        begun, quiet_since_s, deadline_s = servicer.begun, now(), now() + timeout_s
        while now() < deadline_s:
            await asyncio.sleep(min(_LOOK_S, timeout_s))
            if servicer.begun != begun:
                begun, quiet_since_s = servicer.begun, now()
            untold = None if self._tls else connections.send_away(servicer.long_answers)
            if not untold:
                servicer.close_streams()
                self._health.close()
            if now() - quiet_since_s >= (_UNTOLD_QUIET_S if untold else _QUIET_S):
                return

    async def _stop(self, grace_s: float | None) -> None:
        await asyncio.gather(*(server.stop(grace_s) for server in self._servers))


def _options(max_message_bytes: int, connection_age_s: float) -> list[tuple[str, int]]:
    age = [("grpc.max_connection_age_ms", round(connection_age_s * 1000))] if connection_age_s else []
    return [
        *age,
        ("grpc.so_reuseport", 1),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
        ("grpc.max_connection_idle_ms", _IDLE_MS),
        ("grpc.keepalive_time_ms", _LOOK_FOR_PEER_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.ping_timeout_ms", _SILENT_PEER_MS),
        # Or it asks only as often as data are sent.
        ("grpc.http2.max_pings_without_data", 0),
    ]


def _described() -> list[str]:
    """Names of the services that reflection tells of."""
    names = [SERVICE]
    for module in (health_pb2, reflection_pb2):
        POOL.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
        names += [service.full_name for service in module.DESCRIPTOR.services_by_name.values()]
    return names
