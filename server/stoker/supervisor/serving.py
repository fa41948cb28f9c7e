"""From settings to a running server."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

from stoker import __version__
from stoker.errors import InvalidSettings
from stoker.models.available_models import tries_earlier
from stoker.models.ensembles import ensembles_of
from stoker.models.fetching import fetch_models
from stoker.models.sources import Broken
from stoker.settings.server import ServerSettings
from stoker.settings.workspace import Workspace
from stoker.supervisor.addresses import http_address, local_host
from stoker.supervisor.body_memory import body_memory
from stoker.supervisor.guardian import Guardian
from stoker.supervisor.handover import Handover
from stoker.supervisor.pipeline_checks import check_models
from stoker.supervisor.ports import bind, listens, reserve_grpc_port
from stoker.supervisor.predecessor import Predecessor
from stoker.supervisor.reports import StartUp
from stoker.supervisor.server_record import ServerRecord, recorded
from stoker.supervisor.sign_in import SignInLink
from stoker.supervisor.stock import FirstModels, Stock
from stoker.supervisor.summary import summary
from stoker.supervisor.supervisor import Supervisor
from stoker.supervisor.tls_ports import TlsPort, tls_ports, warn_of_expiry
from stoker.system.durable import private_folder
from stoker.system.extras import onnx_clash
from stoker.system.logs import configure_logging
from stoker.system.operator_lines import print_lines
from stoker.system.processes import keep_memory_out_of_cores

logger = logging.getLogger(__name__)


def serve(
    settings: ServerSettings, workspace: Workspace, begun_s: float, predecessor: Predecessor | None = None
) -> int:
    """Serve until a signal asks to stop; return the exit code.

    A server that has been replaced by a successor continues as its guardian, because others know its process id.

    Args:
        begun_s: When the command began, by `time.monotonic`.
    """
    configure_logging("supervisor", form=settings.log_format)
    keep_memory_out_of_cores()
    if clash := onnx_clash():
        logger.warning("%s", clash)
    if predecessor is not None and settings.exit_on_error is None:
        # Models of the old server must not be lost because a file has become unreadable since.
        settings = dataclasses.replace(settings, exit_on_error=True)
    secured = _check_ports(settings)
    if settings.later_mb:
        _create_spool(workspace)
    broken: Broken = {}
    with ExitStack() as resources:
        settings, mirrors = fetch_models(settings, workspace, print_lines, resources)
        settings = _with_ensembles(settings, None if settings.exit_on_error else broken)
        earlier_labels = {} if predecessor is None else predecessor.labels.by_model
        stock = resources.enter_context(Stock(settings, workspace, print_lines, earlier_labels, mirrors))
        available = stock.find_models()
        check_models(settings.pipelines, list(available))
        earlier = tries_earlier(settings, available)
        ends = settings.ends_on_error(len(available)) and not earlier
        models = stock.prepare_first(available, None if ends else broken)
        if broken and not models and settings.exit_on_error is None and not earlier:
            raise next(iter(broken.values()))
        stock.keys.provide_for_admin()
        sockets, kept_ports = _listen(settings, [] if predecessor is None else predecessor.sockets)
        for sock in kept_ports:
            resources.enter_context(sock)
        port = sockets[0].getsockname()[1]
        resources.enter_context(recorded(workspace, _record(settings, port, secured)))
        names = ", ".join(dict.fromkeys(model.name for model in models))
        print_lines(f"Stoker {__version__} loads: {names or 'nothing can be loaded'}")

        # Only for the user of this terminal: a log would keep the token.
        sign_in = SignInLink() if settings.console and settings.auth and sys.stdout.isatty() else None

        def on_ready(start_up: StartUp) -> None:
            token = "" if sign_in is None else sign_in.make_token()
            lines = summary(settings, workspace, port, start_up, secured, token)
            print_lines(f"Stoker {__version__} serves: {start_up.served}", *lines)

        def supervisor() -> Supervisor:
            handover = Handover([*sockets, *kept_ports], predecessor)
            first = FirstModels(models, available, broken)
            return Supervisor(
                settings, first, workspace.keys_dir, sockets, on_ready, stock, begun_s, handover, sign_in
            )

        return asyncio.run(_run(supervisor, resources))


def _create_spool(workspace: Workspace) -> None:
    """Make the folder of requests that are answered later: frontends could not tell the operator what is wrong."""
    try:
        private_folder(workspace.create().later_dir)
    except OSError as error:
        raise InvalidSettings(
            f"later_mb: requests cannot be kept in {workspace.later_dir}: {error.strerror}; choose another workspace"
        ) from error


def _record(settings: ServerSettings, port: int, secured: Mapping[str, TlsPort]) -> ServerRecord:
    """The record by which commands on this machine find the server."""
    tls = secured.get("http")
    own = tls.files.certificate if tls is not None and tls.certificate.self_signed else None
    return ServerRecord.of_this_process(http_address(local_host(settings), port, tls).base, own)


def _with_ensembles(settings: ServerSettings, broken: Broken | None) -> ServerSettings:
    """The settings with the ensembles of their model repositories as pipelines."""
    found = ensembles_of(settings.models, broken)
    return dataclasses.replace(settings, pipelines=(*settings.pipelines, *found)) if found else settings


async def _run(make: Callable[[], Supervisor], resources: ExitStack) -> int:
    """Serve, and then guard the successor, if there is one; the resources of this server are released before."""
    successor = await make().run()
    resources.close()
    if successor is None:
        print_lines("Stoker has stopped.")
        return 0
    return await Guardian(successor).run()


def _listen(
    settings: ServerSettings, inherited: Sequence[socket.socket]
) -> tuple[list[socket.socket], list[socket.socket]]:
    """The listening sockets, and those that reserve a port."""
    port, count = settings.management_port, settings.frontend_count
    of_management = [sock for sock in inherited if port and listens(sock) and sock.getsockname()[1] == port]
    inherited = [sock for sock in inherited if sock not in of_management]
    sockets = bind(settings.host, settings.port, count, inherited)
    if port:
        # Frontends take them as sockets for HTTP; paths of the API are there on this port only.
        sockets += bind(settings.host, port, count, of_management, "--management-port")
    if not (settings.grpc_port or settings.grpc_tls_cert or settings.grpc_tls_key):
        return sockets, []
    return sockets, [reserve_grpc_port(settings, sockets[0], inherited)]


def _check_ports(settings: ServerSettings) -> dict[str, TlsPort]:
    """The ports that speak TLS; warns of certificates that have expired, and of bodies that could fill the memory."""
    secured = tls_ports(settings)
    warn_of_expiry(secured)
    _warn_of_memory(settings)
    return secured


def _warn_of_memory(settings: ServerSettings) -> None:
    """Warn if large bodies could fill the memory."""
    chosen = body_memory(settings)
    if chosen.scarce:
        logger.warning("bodies could fill the memory: %s; %s", chosen, chosen.advice)
