"""Where commands find a running server, and what they ask of it as its administrator."""

from __future__ import annotations

import argparse
import ipaddress
import json
import os
import urllib.error
import urllib.request
from typing import Final
from urllib.parse import urlsplit

from stoker.errors import InvalidSettings, OperatorError

__all__ = ["SERVER", "add_server_arguments", "admin_key", "ask_admin", "on_loopback"]

SERVER: Final = "http://127.0.0.1:8080"
"""Where `stoker serve` listens unless it is told otherwise."""


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare where the server is, and the admin key."""
    parser.add_argument(
        "--url", default=SERVER, metavar="URL", help=f"where the server listens (default {SERVER})"
    )
    parser.add_argument(
        "--key", metavar="KEY", help="the admin key (default: STOKER_ADMIN_KEY, else that of the workspace)"
    )


def admin_key(args: argparse.Namespace) -> str | None:
    """The key given, else the environment's, else the workspace's, which is sent to this machine alone."""
    from stoker.keys.keyring import AdminKey
    from stoker.workspace import Workspace

    given: str | None = args.key or os.environ.get("STOKER_ADMIN_KEY")
    if given or not on_loopback(args.url):
        return given
    try:
        return AdminKey(Workspace.find(args.workspace).keys_dir).show().primary
    except FileNotFoundError:
        return None


def on_loopback(uri: str) -> bool:
    """Whether a URI is of this machine: a key of a workspace here is not sent to any other."""
    host = urlsplit(uri).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def ask_admin(server: str, path: str, key: str | None, *, method: str = "POST", body: bytes = b"") -> bytes:
    """Ask for a path of the model repository API, and return the answer when the server has done it.

    Args:
        server: The server's address, `http://HOST:PORT`.
        path: The path, with its first slash.
        key: The admin key, if there is one to send.
        method: `POST`, or `GET` for what changes nothing.
        body: The body of a POST.

    Raises:
        InvalidSettings: The address is not one of HTTP.
        OperatorError: The server cannot be reached, or refuses.
    """
    if urlsplit(server).scheme not in ("http", "https"):
        raise InvalidSettings(f"{server} is no address of a server; it has to be like {SERVER}")
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    content = None if method == "GET" else body
    request = urllib.request.Request(server.rstrip("/") + path, content, headers, method=method)  # noqa: S310  # checked
    # A proxy does not reach this machine's loopback, and is not to see the key of its workspace.
    proxies = urllib.request.ProxyHandler({} if on_loopback(server) else None)
    try:
        # Loading takes as long as it takes.
        with urllib.request.build_opener(proxies).open(request) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as error:
        raise OperatorError(_reason(error)) from error
    except OSError as error:
        raise OperatorError(
            f"the server at {server} cannot be reached: {_cause(error)}; `stoker serve` starts one, --url names "
            "one elsewhere"
        ) from error


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
