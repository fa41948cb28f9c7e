"""From a plan to YAML: the same plan gives the same bytes, whenever and wherever."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import yaml

from stoker_cluster.objects.autoscaler import autoscaler
from stoker_cluster.objects.autoscaling import autoscaling
from stoker_cluster.objects.configuration import configuration, namespace
from stoker_cluster.objects.disruption import disruption
from stoker_cluster.objects.keys import keys
from stoker_cluster.objects.monitoring import monitoring
from stoker_cluster.objects.network import network
from stoker_cluster.objects.router import router, router_file
from stoker_cluster.objects.routes import routes
from stoker_cluster.objects.service import service
from stoker_cluster.objects.workload import workload
from stoker_cluster.plan import ClusterPlan
from stoker_cluster.pod_file import pod_file

__all__ = ["as_yaml", "objects_of"]

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
        """Write what stands in two places twice."""
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
