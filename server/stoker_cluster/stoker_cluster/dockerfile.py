"""The Dockerfile of an image with the models in it, for clusters whose pods bring their models along."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final

from stoker.errors import InvalidSettings
from stoker_cluster.values import MODELS_FOLDER

__all__ = ["dockerfile"]

# The user of the image; see Dockerfile.gpu.
_USER: Final = 10001


def dockerfile(base: str, models: Sequence[Mapping[str, Any]], packages: Iterable[str] = ()) -> str:
    """Return the text of a Dockerfile, whose build context is the folder that the paths are relative to.

    Args:
        base: The image with Stoker.
        models: The models, as a deployment file has them; paths are relative.
        packages: What pip is told to install beside them, each a line of a requirements file or an option.

    Raises:
        InvalidSettings: A path is outside of the build context, or would take all of it along.
    """
    lines = [f"FROM {base}"]
    installed = list(packages)
    if installed:
        words = " ".join(shlex.quote(word) for line in installed for word in _words(line))
        lines += ["USER root", f"RUN pip install --no-cache-dir {words}", f"USER {_USER}"]
    copies = dict.fromkeys(copy for model in models for copy in _copies(model))
    lines += [f"COPY {json.dumps([source, target], ensure_ascii=False)}" for source, target in copies]
    return "\n".join(lines) + "\n"


def _words(line: str) -> list[str]:
    """An option and its value are two words, a requirement with its spaces and markers is one."""
    return line.split(None, 1) if line.startswith("-") else [line]


def _copies(model: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What is copied, and where to."""
    for name in ("path", "model_dir", "environment", "sample_input"):
        if name not in model:
            continue
        path = _inside(str(model[name]))
        if name == "path" and path.suffix == ".py":
            # Its own modules lie beside it.
            path = _folder(path)
        if path.suffix == ".onnx":
            # Large weights are in files of their own, called model.onnx.data or alike.
            yield f"{path}*", f"{PurePosixPath(MODELS_FOLDER) / path.parent}/"
        else:
            yield str(path), str(PurePosixPath(MODELS_FOLDER) / path)


def _inside(said: str) -> PurePosixPath:
    path = PurePosixPath(said)
    if path.is_absolute() or ".." in path.parts:
        raise InvalidSettings(
            f"{said} is outside of the folder that the image is built from; copy it there and name it relative to it"
        )
    return path


def _folder(script: PurePosixPath) -> PurePosixPath:
    if script.parent == PurePosixPath():
        raise InvalidSettings(
            f"{script} would take all of the current folder into the image; put it into a folder of its own, with "
            "the modules that it imports"
        )
    return script.parent
