"""Definitions of other projects' resources, out of their modules, which Go fetches once and verifies."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final

import yaml
from tests.cluster import tools

__all__ = ["KSERVE", "KSERVE_SUM", "serving_runtimes"]

KSERVE: Final = "github.com/kserve/kserve@v0.20.0"
KSERVE_SUM: Final = "h1:Bs7HxmGV4KFqqptDcWseKv+mwD4YOYHJWcuVgPG2Gug="

_FILE: Final = "config/crd/full/serving.kserve.io_clusterservingruntimes.yaml"


def serving_runtimes() -> dict[str, Any]:
    """KServe's definition of a ClusterServingRuntime, with all of its fields.

    Raises:
        LookupError: It is not there, and Go cannot fetch it.
    """
    kept = tools.folder() / f"{KSERVE.rpartition('/')[2]}.yaml"
    if not kept.exists():
        kept.write_bytes((_module() / _FILE).read_bytes())
    content: dict[str, Any] = yaml.safe_load(kept.read_text(encoding="utf-8"))
    return content


def _module() -> Path:
    """Where Go keeps the files of the module."""
    if shutil.which("go") is None:
        raise LookupError("Go fetches KServe's definitions, and there is none")
    with tempfile.TemporaryDirectory() as nowhere:
        # Outside of any module, so that nothing but this one is looked at.
        done = subprocess.run(
            ["go", "mod", "download", "-json", KSERVE],
            cwd=nowhere,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        raise LookupError(f"KServe's definitions cannot be fetched: {done.stdout}{done.stderr}")
    said = json.loads(done.stdout)
    assert said["Sum"] == KSERVE_SUM, said
    return Path(said["Dir"])
