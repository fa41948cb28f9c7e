"""Learn a model's signature by loading it once on the CPU, in a process of its own.

The process keeps the framework's memory, threads, log lines and crashes away from the caller, which may have
initialised the framework in its own way.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker.errors import LoadFailed, StokerError

if TYPE_CHECKING:
    from stoker.models.frameworks import Detected

__all__ = ["probe_signature"]


def probe_signature(model: Detected) -> dict[str, Any]:
    """Load the model and return its signature as `stoker.tensors.Signature.to_json` gives it.

    Args:
        model: A model that a runtime loads without more settings (ONNX, SavedModel).

    Raises:
        LoadFailed: It does not load on the CPU; the message says why.
    """
    command = [sys.executable, "-P", "-m", __name__, model.framework, str(model.path)]
    probe = subprocess.run(command, capture_output=True, text=True, check=False)
    last_line = (probe.stdout.strip().splitlines() or [""])[-1]
    try:
        answer: dict[str, Any] = json.loads(last_line)
    except ValueError as error:
        reason = (probe.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise LoadFailed(f"loading {model.path} ended with status {probe.returncode}: {reason}") from error
    if "error" in answer:
        raise LoadFailed(answer["error"])
    return answer


def _main(framework: str, path: Path) -> int:
    from stoker.device.lifecycle import load_runtime
    from stoker.servable import Device, Servable

    servable = Servable(
        name=path.name,
        version=1,
        framework=framework,
        path=path,
        model_dir=path.parent,
        max_batch_rows=2,
        max_body_bytes=0,
    )
    try:
        answer = load_runtime(servable, Device("cpu", 0, "CPU"), threads=1).signature.to_json()
    except StokerError as error:
        answer = {"error": str(error)}
    # Models may print while they load; the answer is the last line.
    sys.stdout.write(f"\n{json.dumps(answer)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1], Path(sys.argv[2])))
