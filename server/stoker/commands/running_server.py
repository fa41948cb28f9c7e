"""How commands find a running server, and send it requests as its administrator."""

from __future__ import annotations

import argparse
import ipaddress
import json
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from stoker.commands.terminal import add_workspace_argument
from stoker.errors import InvalidSettings, OperatorError

if TYPE_CHECKING:
    from stoker.supervisor.server_record import ServerRecord

SERVER: Final = "http://127.0.0.1:8080"
"""The default address of `stoker serve`."""
PORT_VARIABLE: Final = "STOKER_PORT"
"""The variable with the port of `stoker serve`, which commands of the same shell read too."""
_PATIENCE_S: Final = 5.0
"""How long a server that starts or hangs is waited for."""
_CERTIFICATE_VARIABLE: Final = "STOKER_TLS_CERT"
"""The variable with the certificate of `stoker serve`; if it is set, commands of the same shell use TLS."""


def server_here() -> str:
    """Return the address of this machine's server: the port of `STOKER_PORT`, with TLS if its certificate is set."""
    scheme = "https" if os.environ.get(_CERTIFICATE_VARIABLE) else "http"
    port = os.environ.get(PORT_VARIABLE, "")
    # Kubernetes gives the pods beside a service named "stoker" STOKER_PORT=tcp://ADDRESS:PORT.
    if not port or port.startswith("tcp://"):
        return SERVER.replace("http", scheme, 1)
    if not (port.isdecimal() and 0 < int(port) < 65536):
        raise InvalidSettings(
            f"{PORT_VARIABLE}={port} does not say where the server is; --uri does, like --uri {SERVER}"
        )
    return f"{scheme}://127.0.0.1:{int(port)}"


def find_server(workspace: Path | None, name: str | None = None) -> ServerRecord | None:
    """Return the only server of a workspace that runs here, or the only one that has a model of this name.

    Returns:
        None if there is none, or if the one at the default address or of a variable is meant.

    Raises:
        InvalidSettings: There are several, and none has the default address.
    """
    from stoker.settings.workspace import Workspace
    from stoker.supervisor.server_record import running_servers

    if server_here() != SERVER:
        return None
    # A reloaded server drains for some seconds beside its successor, which has the same address and comes later.
    found = [*{record.uri: record for record in running_servers(Workspace.find(workspace))}.values()]
    if len(found) > 1 and name is not None:
        found = [record for record in found if name in find_model_names(record, workspace)]
    if len(found) > 1 and SERVER not in [record.uri for record in found]:
        raise InvalidSettings(f"{_list_servers(found)}; name one by --uri")
    return found[0] if len(found) == 1 else None


def _list_servers(records: Sequence[ServerRecord]) -> str:
    listed = ", ".join(f"{record.pid} ({record.uri})" for record in records)
    return f"{len(records)} servers run here: {listed}"


def find_model_names(record: ServerRecord, workspace: Path | None) -> list[str]:
    """Return the names of a server's models; none if it does not answer."""
    try:
        index = json.loads(ask_server(record, workspace, "/v2/repository/index", "POST"))
    except OperatorError:
        return []
    return list(dict.fromkeys(str(model["name"]) for model in index))


def ask_server(record: ServerRecord, workspace: Path | None, path: str, method: str = "GET") -> bytes:
    """Ask a server that runs here, as `ask_admin` does, with the admin key of its workspace."""
    server = argparse.Namespace(uri=record.uri, key=None, cacert=record.ca_path, workspace=workspace)
    return ask_admin(server, path, method=method, timeout_s=_PATIENCE_S)


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare where the server is, and the admin key."""
    parser.add_argument(
        "--uri",
        help=f"where the server listens (default: the port of ${PORT_VARIABLE}, else the only server of the "
        f"workspace that runs here, else {SERVER})",
    )
    parser.add_argument(
        "--key", metavar="KEY", help="the admin key (default: STOKER_ADMIN_KEY, else that of the workspace)"
    )
    add_ca_argument(parser)


def add_ca_argument(parser: argparse.ArgumentParser) -> None:
    """Declare by whom the server's certificate is vouched for, as `curl` calls that."""
    parser.add_argument(
        "--cacert",
        type=Path,
        metavar="FILE",
        help="authorities (PEM) by which a server of https is trusted, or its own certificate (default: those of "
        "SSL_CERT_FILE, else the system's)",
    )


def connection_advice(cause: str) -> str:
    """Return advice about a server that cannot be reached for this cause."""
    if "CERTIFICATE_VERIFY_FAILED" in cause:
        return "Its certificate is not trusted here: --cacert names the PEM file of its authority."
    return "Is the server running? `stoker serve` starts it; --uri names one elsewhere."


def on_loopback(uri: str) -> bool:
    """Whether a URI is of this machine: a key of a workspace here is not sent to any other."""
    host = urlsplit(uri).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def add_choice_of_servers(parser: argparse.ArgumentParser) -> None:
    """Declare which of the servers that run here are meant."""
    parser.add_argument(
        "server",
        nargs="?",
        metavar="PID|PORT|NAME",
        help="the server, by its process id, its port, or the name of a model that it serves (default: the only one "
        "that runs here)",
    )
    add_workspace_argument(parser)


def chosen_servers(args: argparse.Namespace) -> list[ServerRecord]:
    """Return the servers of the workspace that the arguments mean, at least one.

    Raises:
        OperatorError: None runs here.
    """
    from stoker.settings.workspace import Workspace
    from stoker.supervisor.server_record import running_servers

    workspace = Workspace.find(args.workspace)
    found = running_servers(workspace)
    if not found:
        raise OperatorError(
            f"no server of the workspace {workspace.root} runs here; 'stoker serve' starts one, --workspace names "
            "another workspace"
        )
    if args.server is not None:
        named = [record for record in found if _is_meant(record, args)]
        if not named:
            models = sorted({name for record in found for name in find_model_names(record, args.workspace)})
            raise InvalidSettings(
                f"no server here has the process id, the port or the model {args.server}; served here: "
                f"{', '.join(models) or 'none'}"
            )
        return named
    return found


def _is_meant(record: ServerRecord, args: argparse.Namespace) -> bool:
    if args.server in (str(record.pid), str(urlsplit(record.uri).port)):
        return True
    return not args.server.isdecimal() and args.server in find_model_names(record, args.workspace)


def chosen_server(args: argparse.Namespace) -> ServerRecord:
    """Return the server of the workspace that the arguments mean.

    Raises:
        OperatorError: None runs here.
        InvalidSettings: Several run here, and none is named.
    """
    # A reloaded server drains for some seconds beside its successor, which has the same address and comes later.
    found = list({record.uri: record for record in chosen_servers(args)}.values())
    if len(found) > 1:
        raise InvalidSettings(f"{_list_servers(found)}; name one by its process id, its port or a model")
    return found[0]


def ask_admin(
    args: argparse.Namespace, path: str, *, method: str = "POST", timeout_s: float | None = None
) -> bytes:
    """Ask for a path of the model repository API, and return the answer when the server has done it.

    Args:
        path: The path, with its first slash.
        method: `POST`, or `GET` for a request that changes nothing.
        timeout_s: How long to wait for an answer; None waits for ever, because loading takes as long as it takes.
    """
    record = None if args.uri else find_server(args.workspace)
    server = args.uri or (server_here() if record is None else record.uri)
    authorities = args.cacert or (None if record is None else record.ca_path)
    parts = urlsplit(server)
    if parts.scheme not in ("http", "https") or parts.path.rstrip("/").endswith("/score"):
        raise InvalidSettings(f"{server} is no address of a server; it has to be like {SERVER}")
    key = _admin_key(args, server)
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    content = None if method == "GET" else b""
    request = urllib.request.Request(server.rstrip("/") + path, content, headers, method=method)  # noqa: S310  # checked
    # A proxy does not reach this machine's loopback, and is not to see the key of its workspace.
    proxies = urllib.request.ProxyHandler({} if on_loopback(server) else None)
    handlers = [proxies, *_trust(authorities)]
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=timeout_s) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as error:
        raise OperatorError(_reason(error)) from error
    except OSError as error:
        cause = str(_cause(error))
        raise OperatorError(
            f"the server at {server} cannot be reached: {cause}\n{connection_advice(cause)}"
        ) from error


def _trust(authorities: Path | None) -> list[urllib.request.BaseHandler]:
    """Return a handler that trusts these authorities; none for those of the system."""
    if authorities is None:
        return []
    try:
        return [urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=authorities))]
    except OSError as error:
        raise InvalidSettings(f"--cacert {authorities} cannot be used: {error.strerror or error}") from error


def _admin_key(args: argparse.Namespace, server: str) -> str | None:
    """Return the given key, else the environment's, else the workspace's, which is only sent to this machine."""
    from stoker.keys.keyring import AdminKey
    from stoker.settings.workspace import Workspace

    given: str | None = args.key or os.environ.get("STOKER_ADMIN_KEY")
    if given or not on_loopback(server):
        return given
    try:
        return AdminKey(Workspace.find(args.workspace).keys_dir).show().primary
    except FileNotFoundError:
        return None


def _cause(error: OSError) -> BaseException | str:
    return error.reason if isinstance(error, urllib.error.URLError) else error


def _reason(error: urllib.error.HTTPError) -> str:
    with error:
        body = error.read()
    try:
        content = json.loads(body)
        return str(content.get("error") or content["message"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"the server answers with status {error.code}"
