"""The message with which a frontend starts: the rules of the server, and the models that it serves now."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from ipaddress import ip_address
from pathlib import Path

from stoker.control.frontend_messages import (
    AdminRules,
    GrpcRules,
    LaterRules,
    ServerRules,
    SharedMemoryRules,
    StartFrontend,
)
from stoker.deployment import Deployment
from stoker.keys.keyring import Keys
from stoker.settings.server import ServerSettings
from stoker.settings.workspace import Workspace
from stoker.supervisor.addresses import address_of
from stoker.supervisor.body_memory import body_memory
from stoker.supervisor.catalogue import Catalogue
from stoker.supervisor.pipeline_checks import rules_of_pipelines
from stoker.supervisor.trace_settings import TraceSettings
from stoker.system.logs import log_settings


class FrontendStarts:
    """Makes the message for each start of a frontend."""

    def __init__(
        self, settings: ServerSettings, catalogue: Catalogue, keys_dir: Path, traces: TraceSettings | None
    ) -> None:
        """Divide the memory for large bodies: later starts get as much as the first ones."""
        self._settings, self._catalogue, self._keys_dir, self._traces = settings, catalogue, keys_dir, traces
        self._large_bodies_bytes = body_memory(settings).budget_bytes
        self._is_named_alone = catalogue.only is not None

    def message(
        self, page: int, listening: Sequence[Sequence[socket.socket]], models: Iterable[Deployment]
    ) -> StartFrontend:
        """Make the message.

        Args:
            page: The page of the frontend, which is its place among all frontends.
            listening: The listening sockets of each frontend.
            models: The models that are served.
        """
        settings = self._settings
        return StartFrontend(
            page=page,
            server=ServerRules(
                auth=settings.auth,
                token_auth=settings.token_auth,
                keys_dir=self._keys_dir,
                max_body_bytes=settings.max_body_bytes,
                max_image_pixels=settings.max_image_pixels,
                frontends=len(listening),
                large_bodies_bytes=self._large_bodies_bytes,
                endpoint=settings.endpoint,
                connection_age_s=settings.connection_age_s,
                trusts_proxy=settings.trust_proxy_headers,
                access_log_sample=settings.access_log_sample,
                sampling=None if self._traces is None else self._traces.sampling,
                tls=settings.tls,
                hosts=answered_hosts(settings),
                management_port=settings.management_port,
                keys=Keys.from_operator(settings.primary_key or None, settings.secondary_key or None),
                limits_models=bool(settings.model_limits),
            ),
            metrics_need_key=settings.metrics_auth,
            metadata_need_key=(settings.auth or settings.token_auth) and not settings.open_metadata,
            console=settings.console,
            docs=settings.docs,
            cors_origins=settings.cors_origins,
            tells_version=settings.tells_version,
            title=settings.service_name if self._is_named_alone else None,
            service_version=settings.service_version,
            path_prefix=settings.service_path_prefix,
            grpc=_grpc_rules(settings, listening[page][0]),
            admin=self._admin_rules(listening),
            services=tuple(model.share_of(page, len(listening)) for model in models),
            models=tuple(model.route() for model in self._catalogue.models.values()),
            only=self._catalogue.only,
            shared_memory=_shared_memory_rules(settings),
            pipelines=rules_of_pipelines(settings, self._catalogue),
            later=self._later_rules(),
            log=log_settings(),
        )

    def _later_rules(self) -> LaterRules | None:
        settings = self._settings
        if not settings.later_mb:
            return None
        return LaterRules(
            folder=Workspace(self._keys_dir.parent).later_dir,
            budget_bytes=int(settings.later_mb * 2**20),
            keep_s=settings.later_keep_s,
            callback_hosts=settings.callback_hosts,
        )

    def _admin_rules(self, listening: Sequence[Sequence[socket.socket]]) -> AdminRules:
        settings = self._settings
        hosts = [sock.getsockname()[0] for sockets in listening for sock in sockets]
        return AdminRules(
            polls=settings.poll_s > 0,
            needs_key=settings.auth or settings.token_auth or settings.admin_key is not None,
            key=settings.admin_key,
            local=all(ip_address(host).is_loopback for host in hosts),
        )


def answered_hosts(settings: ServerSettings) -> tuple[str, ...] | None:
    """The names in `Host` that are answered; None for all.

    A page in a browser may have its own name resolved to the address of this server, and then reads what it answers
    as if it came from there. Where callers need a key, or a certificate is shown, such a page gets nothing.
    """
    if settings.allowed_hosts:
        return None if "*" in settings.allowed_hosts else settings.allowed_hosts
    if settings.auth or settings.token_auth or settings.tls is not None:
        return None
    return (socket.gethostname().lower(), settings.host.lower())


def _shared_memory_rules(settings: ServerSettings) -> SharedMemoryRules | None:
    if settings.shared_memory == "off":
        return None
    return SharedMemoryRules(
        needs_admin=settings.shared_memory == "admin", anywhere=settings.shared_memory_peers == "any"
    )


def _grpc_rules(settings: ServerSettings, beside: socket.socket) -> GrpcRules | None:
    if not settings.grpc_port:
        return None
    return GrpcRules(
        address=address_of(beside, settings.grpc_port),
        max_message_bytes=settings.max_body_bytes,
        tls=settings.grpc_tls,
        connection_age_s=settings.connection_age_s,
    )
