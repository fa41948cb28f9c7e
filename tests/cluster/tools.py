"""The binaries of a control plane and of a node, built once by Go into a folder outside the repository.

`python -m tests.cluster.tools` builds what is missing for a control plane, with `node` for a node too. What is built,
and from which versions, stands in `binaries/go.mod`; the sums of all of it in `binaries/go.sum`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

__all__ = ["MODULE", "NAMES", "OF_A_NODE", "build", "folder", "kubernetes_version", "missing"]

MODULE: Final = Path(__file__).parent / "binaries"
NAMES: Final = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
OF_A_NODE: Final = (*NAMES, "kubelet", "kube-proxy", "pause")

_KUBERNETES: Final = re.compile(r"\bk8s\.io/kubernetes v(1\.\d+\.\d+)\b")
_PACKAGES: Final = {name: f"k8s.io/kubernetes/cmd/{name}" for name in OF_A_NODE} | {
    "etcd": "go.etcd.io/etcd/server/v3",
    "pause": "./pause",
}


def kubernetes_version() -> str:
    """The version of Kubernetes that the module names, without the `v`."""
    found = _KUBERNETES.search((MODULE / "go.mod").read_text(encoding="utf-8"))
    assert found is not None
    return found[1]


def folder() -> Path:
    """Where the binaries are, or would be: `STOKER_CLUSTER_TOOLS`, else a folder of the user's cache."""
    if given := os.environ.get("STOKER_CLUSTER_TOOLS"):
        return Path(given)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "stoker-cluster-tools" / f"v{kubernetes_version()}"


def missing(wanted: Sequence[str] = NAMES) -> list[str]:
    """The binaries that are not there."""
    return [name for name in wanted if not os.access(folder() / name, os.X_OK)]


def build(wanted: Sequence[str] = NAMES) -> str | None:
    """Build the missing binaries; returns why that is not possible, None if all are there."""
    names = missing(wanted)
    if not names:
        return None
    if shutil.which("go") is None:
        return f"{', '.join(names)} cannot be built: there is no Go (1.26 or newer)"
    target = folder()
    target.mkdir(parents=True, exist_ok=True)
    major, minor, _ = kubernetes_version().split(".")
    prefix = "k8s.io/component-base/version"
    values = {"gitVersion": f"v{kubernetes_version()}", "gitMajor": major, "gitMinor": minor}
    stamps = " ".join(f"-X {prefix}.{name}={value}" for name, value in values.items())
    for name in names:
        # Under another name first: what is interrupted must not look as if it were there.
        made = target / f".{name}.{os.getpid()}"
        command = [
            "go",
            "build",
            "-trimpath",
            "-buildvcs=false",
            "-ldflags",
            f"-s -w {stamps}",
            "-o",
            str(made),
        ]
        environ = os.environ | {"CGO_ENABLED": "0"}
        print(f"building {name}; all of them take about 5 minutes of 2 cores, once", flush=True)
        ended = subprocess.run([*command, _PACKAGES[name]], cwd=MODULE, env=environ, check=False)
        if ended.returncode != 0:
            return f"{name} could not be built: go build ended with {ended.returncode}"
        made.rename(target / name)
    return None


def main() -> int:
    """Build the missing binaries. If that is not possible, the tests are skipped with the reason."""
    node = sys.argv[1:] == ["node"]
    reason = build(OF_A_NODE if node else NAMES)
    print(reason or f"the binaries of the {'node' if node else 'control plane'} are in {folder()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
