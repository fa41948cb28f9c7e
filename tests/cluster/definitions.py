"""Definitions of other projects' resources, out of their modules, which Go fetches once and verifies."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml
from tests.cluster import tools

__all__ = ["GATEWAYS", "HTTP_ROUTES", "SCALED_OBJECTS", "SERVING_RUNTIMES", "Definition", "definition"]


class Definition(NamedTuple):
    """Where a definition is.

    Attributes:
        module: The module with its version.
        sum: The digest of its files, as `go.sum` has it.
        path: The file in it.
    """

    module: str
    sum: str
    path: str


SERVING_RUNTIMES: Final = Definition(
    "github.com/kserve/kserve@v0.20.0",
    "h1:Bs7HxmGV4KFqqptDcWseKv+mwD4YOYHJWcuVgPG2Gug=",
    "config/crd/full/serving.kserve.io_clusterservingruntimes.yaml",
)
"""KServe's ClusterServingRuntime, with all of its fields."""

SCALED_OBJECTS: Final = Definition(
    "github.com/kedacore/keda/v2@v2.18.0",
    "h1:ttR223fii/4QJ0YvtrhcWHaEoezByb/t5CeFopjl6EI=",
    "config/crd/bases/keda.sh_scaledobjects.yaml",
)
"""KEDA's ScaledObject."""

_GATEWAY_API: Final = "sigs.k8s.io/gateway-api@v1.6.3"
_GATEWAY_API_SUM: Final = "h1:lKpJa5bGlraC/QeACvCpsHLdmO6y0iKfzVl6gzaFEYc="


def _of_gateways(kind: str) -> Definition:
    path = f"config/crd/standard/gateway.networking.k8s.io_{kind}.yaml"
    return Definition(_GATEWAY_API, _GATEWAY_API_SUM, path)


HTTP_ROUTES: Final = _of_gateways("httproutes")
"""The Gateway API's HTTPRoute."""

GATEWAYS: Final = (
    HTTP_ROUTES,
    *map(
        _of_gateways,
        (
            "gatewayclasses",
            "gateways",
            "grpcroutes",
            "referencegrants",
            "backendtlspolicies",
            "listenersets",
            "tcproutes",
            "tlsroutes",
            "udproutes",
        ),
    ),
)
"""All kinds of the Gateway API that are stable: who carries its routes out looks at others than those."""


def definition(wanted: Definition) -> dict[str, Any]:
    """A definition, as its project has it.

    Raises:
        LookupError: It is not there, and Go cannot fetch it.
    """
    kept = tools.folder() / f"{Path(wanted.path).stem}@{wanted.module.rpartition('@')[2]}.yaml"
    if not kept.exists():
        content = (_files_of(wanted) / wanted.path).read_bytes()
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(content)
    found: dict[str, Any] = yaml.safe_load(kept.read_text(encoding="utf-8"))
    return found


def _files_of(wanted: Definition) -> Path:
    """Where Go keeps the files of the module."""
    if shutil.which("go") is None:
        raise LookupError(f"Go fetches {wanted.module}, and there is none")
    with tempfile.TemporaryDirectory() as nowhere:
        # Outside of any module, so that nothing but this one is looked at.
        done = subprocess.run(
            ["go", "mod", "download", "-json", wanted.module],
            cwd=nowhere,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        raise LookupError(f"{wanted.module} cannot be fetched: {done.stdout}{done.stderr}")
    download = json.loads(done.stdout)
    assert download["Sum"] == wanted.sum, download
    return Path(download["Dir"])
