"""Traefik as it is released, outside of the cluster: it carries out the routes of a Gateway."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.cluster.control_plane import ControlPlane
from tests.cluster.definitions import GATEWAYS, definition
from tests.cluster.kinds import installed

__all__ = ["NAME", "await_route", "found", "running"]

NAME: Final = "main"
"""The name of the Gateway in the test's namespace."""

_API: Final = "gateway.networking.k8s.io/v1"
_CLASS: Final = "traefik"


def found() -> str | None:
    """Where Traefik is; None if it is not there."""
    return shutil.which("traefik", path=f"{Path(sys.prefix) / 'bin'}:{os.environ['PATH']}")


@contextlib.contextmanager
def running(plane: ControlPlane, folder: Path, namespace: str, place: tuple[str, int]) -> Iterator[None]:
    """Have a Gateway in a namespace while the body runs, which listens at a place of this machine.

    Raises:
        LookupError: The definitions of its kinds cannot be had.
    """
    host, port = place
    options = [
        f"--entrypoints.web.address={host}:{port}",
        "--providers.kubernetesgateway",
        f"--providers.kubernetesgateway.namespaces={namespace}",
        "--global.checknewversion=false",
    ]
    with contextlib.ExitStack() as started:
        for wanted in GATEWAYS:
            started.enter_context(installed(plane, definition(wanted)))
        controller = {"controllerName": "traefik.io/gateway-controller"}
        plane.create(f"/apis/{_API}/gatewayclasses", _object("GatewayClass", _CLASS, controller))
        listener = {"name": "web", "port": port, "protocol": "HTTP"}
        spec = {"gatewayClassName": _CLASS, "listeners": [listener]}
        plane.create(f"/apis/{_API}/namespaces/{namespace}/gateways", _object("Gateway", NAME, spec))
        log = started.enter_context((folder / "traefik.log").open("wb"))
        process = subprocess.Popen(
            [str(found()), *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            env=os.environ | {"KUBECONFIG": str(plane.kubeconfig)},
        )
        try:
            yield
        finally:
            process.kill()
            process.wait()


def await_route(plane: ControlPlane, namespace: str, name: str) -> None:
    """Wait until the Gateway has taken a route, and knows all that it leads to."""

    def is_accepted(route: Any) -> bool:
        parents = route.get("status", {}).get("parents", [])
        conditions = {one["type"]: one["status"] for parent in parents for one in parent["conditions"]}
        return conditions.get("Accepted") == conditions.get("ResolvedRefs") == "True"

    plane.eventually(f"/apis/{_API}/namespaces/{namespace}/httproutes/{name}", is_accepted, within_s=120)


def _object(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": _API, "kind": kind, "metadata": {"name": name}, "spec": spec}
