"""The virtual environments of the peers: one each, with pinned packages, built once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.errors import OperatorError

if TYPE_CHECKING:
    from stoker_bench.contestants.peers import Peer

__all__ = ["build_environment"]


def build_environment(peer: Peer, environments: Path) -> Path:
    """Return the peer's virtual environment, built if it is not there with just these requirements.

    Raises:
        OperatorError: If uv is missing or cannot install them.
    """
    environment = environments / peer.folder
    stamp = environment / "requirements.txt"
    wanted = "\n".join(peer.requirements) + "\n"
    if stamp.exists() and stamp.read_text() == wanted:
        return environment
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if uv is None:
        raise OperatorError("uv is needed to build the peers' environments; `make install` brings it")
    print(f"compare: building the environment of {peer.folder} …", file=sys.stderr, flush=True)
    python = environment / "bin" / "python"
    for command in (
        [uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(environment)],
        [uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", str(python), *peer.requirements],
    ):
        built = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
        if built.returncode:
            raise OperatorError(f"{' '.join(command[:3])} failed for {peer.folder}: {built.stderr.strip()}")
    stamp.write_text(wanted)
    return environment
