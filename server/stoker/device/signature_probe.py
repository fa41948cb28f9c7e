"""Finds a model's signature by loading it on the CPU as a server would, in a separate process.

The separate process keeps the framework's memory, threads, log lines and crashes away from the caller, which may
have initialised the framework differently.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from stoker.errors import LoadFailed, LoadTimeout, RepositoryError
from stoker.models.frameworks import Detected
from stoker.settings.image_input import ImageInput, read_image_input
from stoker.settings.readers import read_settings
from stoker.settings.server import ServerSettings
from stoker.system.child_orders import answer_order, order_child

_MODULE: Final = "stoker.device.signature_probe"
_VARIABLE: Final = "STOKER_LOAD_TIMEOUT_S"
_PROBED_ROWS: Final = 2
_LARGEST_BATCH_S: Final = 0.5
"""Batches grow towards the largest one while together they take no longer than this."""
# Parts of framework errors that concern only the CPU or this machine: operators and layouts that exist for GPUs
# only, memory, missing packages.
_MAY_LOAD_ELSEWHERE: Final = re.compile(
    r"NOT_IMPLEMENTED|Could not find an implementation|No OpKernel|Unimplemented|NHWC|CUDA|cuDNN|\bGPU|"
    r"no memory for|bad_alloc|out of memory|ended with status|No module named|pip install",
    re.IGNORECASE,
)


def learn_signature(
    name: str,
    path: Path,
    original: Detected,
    copy: Detected,
    folder: Path,
    note: Callable[[str], None],
    check: Callable[[dict[str, Any]], None] = lambda _: None,
    image: ImageInput | None = None,
    load_timeout_s: float | None = None,
) -> dict[str, Any] | None:
    """Find the signature of a model that is being registered, and refuse models that a server would refuse.

    Args:
        path: The file or folder that is registered.
        original: The model in it.
        copy: The copy of it.
        folder: The folder with the copy, and a sample input if there is one.
        note: Called with a sentence if a signature stays open: why, and which setting the model needs.
        check: Raises an OperatorError for a signature that is refused.
        image: How its input is made from images; None if it takes none.
        load_timeout_s: How long loading it may take; by default as long as a server of this environment would wait.

    Returns:
        The signature as `stoker.tensors.Signature.to_json` gives it; None for scripts, which say when they are
            served
        what they take, and for a model that may need a GPU, or TensorFlow, which is not there.

    Raises:
        LoadTimeout: It is not loaded in time.
        RepositoryError: The original can be served, and a copy of it alone cannot.
        LoadFailed: A server would refuse it on any device; the message is what it would say.
        OperatorError: `check` refuses it.
    """
    if not _is_readable(original, note):
        return None
    try:
        signature, limit = _probe_signature(copy, name, folder, image, load_timeout_s)
    except LoadTimeout:
        raise
    except LoadFailed:
        limit = None
    if limit is None:
        _explain_failure(original, name, path, note, check, image, load_timeout_s)
        return None
    check(signature)
    if limit:
        note(limit)
    return signature


def _is_readable(model: Detected, note: Callable[[str], None]) -> bool:
    """Whether a model has a signature that can be read here."""
    if model.framework == "tensorflow" and find_spec("tensorflow") is None:
        note("TensorFlow is not installed here, so the model is registered without its signature.")
        return False
    return model.framework in {"onnx", "tensorflow"}


def _explain_failure(
    original: Detected,
    name: str,
    path: Path,
    note: Callable[[str], None],
    check: Callable[[dict[str, Any]], None],
    image: ImageInput | None,
    load_timeout_s: float | None,
) -> None:
    """Explain why the copy of a model cannot be loaded on the CPU; the arguments are those of `learn_signature`.

    Returns normally if the model may load on a GPU.

    Raises:
        RepositoryError: The original can be loaded, so its copy lacks something.
        LoadFailed: Neither can be loaded.
        OperatorError: `check` refuses it.
    """
    try:
        folder = path if path.is_dir() else path.parent
        signature, _ = _probe_signature(original, name, folder, image, load_timeout_s)
    except LoadFailed as error:
        if not _MAY_LOAD_ELSEWHERE.search(str(error)):
            raise
        note(f"Registering without a signature, because the model does not load on the CPU here: {error}")
        return
    # The copy may have failed for the reason for which `check` refuses the original.
    check(signature)
    raise RepositoryError(
        f"{original.path} needs files beside it, such as its weights, of which only those called NAME.onnx.data or "
        f"NAME.onnx_data are copied with it; register the folder: stoker models register {name} "
        f"{original.path.absolute().parent}"
    )


def _probe_signature(
    model: Detected, name: str, model_dir: Path, image: ImageInput | None, load_timeout_s: float | None
) -> tuple[dict[str, Any], str]:
    """Load the model and run its first batches.

    Args:
        model: A model that a runtime loads without more settings (ONNX, SavedModel).
        name: Its name, for messages.
        model_dir: The folder with its files, where its sample input is looked for.
        image: How its input is made from images; None if it takes none.
        load_timeout_s: As in `learn_signature`.

    Returns:
        Its signature as `stoker.tensors.Signature.to_json` gives it, and why batches of the usual size are too
            large
        for it; empty if they are not.

    Raises:
        LoadTimeout: It is not loaded in time; its process was ended.
        LoadFailed: A server would refuse it on the CPU; the message says why.
    """
    described = {
        "name": name,
        "framework": model.framework,
        "path": str(model.path),
        "model_dir": str(model_dir),
        "image": None if image is None else image.to_json(),
    }
    limit_s = _load_timeout_s(os.environ) if load_timeout_s is None else load_timeout_s
    answer = order_child(_MODULE, described, limit_s, name, "loaded and warmed up")
    return answer["signature"], answer["limit"]


def _load_timeout_s(environ: Mapping[str, str]) -> float:
    """How long a server of this environment would wait."""
    given = environ.get(_VARIABLE)
    values = {} if not given else read_settings(ServerSettings, {"load_timeout_s": given}, _VARIABLE)
    return ServerSettings(**values).load_timeout_s


def _probe(described: dict[str, Any]) -> dict[str, Any]:
    from stoker.deployment import Deployment, Device
    from stoker.device.first_batches import run_larger_batches
    from stoker.device.loading import load
    from stoker.models.sources import ModelSource
    from stoker.models.tokenizers import find_text_input
    from stoker.settings.model import ModelSettings
    from stoker.settings.server import ServerSettings

    settings = ServerSettings()
    source = ModelSource(described["name"], 1, described["framework"], Path(described["path"]))
    deployment = Deployment(
        name=described["name"],
        version=1,
        framework=described["framework"],
        path=Path(described["path"]),
        model_dir=Path(described["model_dir"]),
        # Testing whether rows are independent takes long at the largest size of large models.
        max_batch_rows=_PROBED_ROWS,
        max_body_bytes=settings.max_body_bytes,
        image=None if described["image"] is None else read_image_input(described["image"]),
        text=find_text_input(source, Path(described["model_dir"]), ModelSettings()),
    )
    loaded = load(deployment, Device("cpu", 0, "CPU"))
    until_s, limit = time.monotonic() + _LARGEST_BATCH_S, ""
    try:
        run_larger_batches(
            loaded, deployment.name, settings.max_batch_rows, lambda: time.monotonic() < until_s
        )
    except LoadFailed as error:
        limit = str(error)
    return {"signature": loaded.signature.to_json(), "limit": limit}


if __name__ == "__main__":
    sys.exit(answer_order(_probe, "the model cannot be loaded"))
