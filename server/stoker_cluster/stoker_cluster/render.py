"""From a plan to YAML: the same plan gives the same bytes, whenever and wherever."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final

import yaml

from stoker.errors import InvalidSettings
from stoker.settings.names import read_address
from stoker_cluster.objects.autoscaler import autoscaler
from stoker_cluster.objects.autoscaling import autoscaling
from stoker_cluster.objects.configuration import configuration, keys, namespace, pod_file
from stoker_cluster.objects.pod import workload
from stoker_cluster.objects.route import routes
from stoker_cluster.objects.router import router, router_file
from stoker_cluster.objects.service import disruption, monitoring, network, service
from stoker_cluster.plan import ClusterPlan
from stoker_cluster.readers import MODELS_FOLDER

# Kubernetes reads YAML with Go's rules, by which 1e3 and 0o7 are numbers and y may be true; PyYAML's own differ.
_NOT_PLAIN: Final = re.compile(r"[-+.\d]|[yYnN]\Z")
_FINGERPRINT_CHARS: Final = 16


def objects_of(plan: ClusterPlan) -> list[dict[str, Any]]:
    """Return all objects of the plan, those first that others refer to."""
    deployment_file = as_yaml([pod_file(plan)])
    fingerprint = hashlib.sha256(deployment_file.encode()).hexdigest()[:_FINGERPRINT_CHARS]
    return [
        *namespace(plan),
        *keys(plan),
        *configuration(plan, deployment_file),
        *network(plan),
        *service(plan),
        *workload(plan, fingerprint),
        *disruption(plan),
        *autoscaling(plan),
        *autoscaler(plan),
        *router(plan, as_yaml([router_file(plan)])),
        *routes(plan),
        *monitoring(plan),
    ]


def as_yaml(objects: Iterable[Mapping[str, Any]]) -> str:
    """Return the objects as one YAML text, documents with `---` between them."""
    return "---\n".join(
        yaml.dump(dict(content), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)
        for content in objects
    )


class _Dumper(yaml.SafeDumper):
    """YAML for people and for Kubernetes: no anchors, long texts as blocks, texts that look like numbers quoted."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write repeated values in full, without YAML anchors."""
        del data
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """Indent lists below their names."""
        del indentless
        super().increase_indent(flow, indentless=False)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    if "\n" in text:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|")
    style = '"' if _NOT_PLAIN.match(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


# The user of the image; see Dockerfile.gpu.
_USER: Final = 10001


def dockerfile(base: str, models: Sequence[Mapping[str, Any]], packages: Iterable[str] = ()) -> str:
    """Return the text of a Dockerfile, whose build context is the folder that the paths are relative to.

    Args:
        base: The image with Stoker.
        models: The models, as a deployment file has them; paths are relative.
        packages: Arguments of `pip install`: packages, requirements files or options.

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
    """Yield the sources and destinations of copies."""
    for name in ("path", "model_dir", "environment", "sample_input"):
        if name not in model or read_address(str(model[name])) is not None:
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


def _inside(named: str) -> PurePosixPath:
    path = PurePosixPath(named)
    if path.is_absolute() or ".." in path.parts:
        raise InvalidSettings(
            f"{named} is outside of the folder that the image is built from; copy it there and name it relative to it"
        )
    return path


def _folder(script: PurePosixPath) -> PurePosixPath:
    if script.parent == PurePosixPath():
        raise InvalidSettings(
            f"{script} would take all of the current folder into the image; put it into a folder of its own, with "
            "the modules that it imports"
        )
    return script.parent
