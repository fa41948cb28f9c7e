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
    from stoker.image_input import ImageInput
    from stoker.models.frameworks import Detected

__all__ = ["probe_signature"]


def probe_signature(model: Detected, image: ImageInput | None = None) -> dict[str, Any]:
    """Load the model and return its signature as `stoker.tensors.Signature.to_json` gives it.

    Args:
        model: A model that a runtime loads without more settings (ONNX, SavedModel).
        image: How its input is made from images, for a sample that is one; None if it takes none.

    Raises:
        LoadFailed: It does not load on the CPU; the message says why.
    """
    described = json.dumps(None if image is None else image.to_json())
    command = [sys.executable, "-P", "-m", __name__, model.framework, str(model.path), described]
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


def _main(framework: str, path: Path, image: Any) -> int:
    from stoker.device.lifecycle import load_runtime
    from stoker.image_input import read_image_input
    from stoker.servable import Device, Servable

    servable = Servable(
        name=path.name,
        version=1,
        framework=framework,
        path=path,
        # A SavedModel's own folder has its sample.
        model_dir=path if path.is_dir() else path.parent,
        max_batch_rows=2,
        max_body_bytes=0,
        image=None if image is None else read_image_input(image),
    )
    try:
        answer = load_runtime(servable, Device("cpu", 0, "CPU"), threads=1).signature.to_json()
    except StokerError as error:
        answer = {"error": str(error)}
    # Models may print while they load; the answer is the last line.
    sys.stdout.write(f"\n{json.dumps(answer)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])))
