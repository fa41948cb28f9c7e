"""Asking a live server in a protocol's words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from tests.http.raw_http import Answer, Headers, bearer, request
from tests.live_server import LiveServer

__all__ = ["ask", "infer", "tensor"]


def ask(
    server: LiveServer,
    method: str,
    path: str,
    body: Mapping[str, Any] | bytes | None = None,
    headers: Headers = (),
    *,
    key: str | None = "",
) -> Answer:
    """Ask on a connection of its own; with the server's key, unless another one or None is given."""
    keys = [] if key is None else [bearer(key or server.key)]
    content = json.dumps(body).encode() if isinstance(body, Mapping) else body
    with server.connect() as connection:
        connection.send(request(method, path, [*keys, *headers], content))
        return connection.answer(bodiless=method == "HEAD")


def tensor(
    name: str, datatype: str, data: Any, shape: list[int] | None = None, **more: Any
) -> dict[str, Any]:
    """An input of an infer request with its data in the JSON."""
    sizes = list(np.shape(data)) if shape is None else shape
    return {"name": name, "datatype": datatype, "shape": sizes, "data": data, **more}


def infer(
    server: LiveServer,
    model: str,
    *inputs: dict[str, Any],
    binary: bytes | None = None,
    headers: Headers = (),
    **more: Any,
) -> Answer:
    """Post an infer request; `binary` is what follows its JSON."""
    text = json.dumps({"inputs": list(inputs), **more}).encode()
    if binary is not None:
        headers = [*headers, ("Inference-Header-Content-Length", str(len(text)))]
    return ask(server, "POST", f"/v2/models/{model}/infer", text + (binary or b""), headers)
