"""Write the rules as an object for Prometheus' operator: `make dashboards`."""

from __future__ import annotations

from pathlib import Path

import yaml

HEAD = "# Made of rules/ by `make dashboards`.\n"


def write(folder: Path) -> None:
    """Write `prometheus-rule.yaml` of the rules in a folder."""
    files = sorted((folder / "rules").glob("*.yaml"))
    groups = [group for path in files for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]]
    rule = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "stoker", "labels": {"app.kubernetes.io/name": "stoker"}},
        "spec": {"groups": groups},
    }
    text = yaml.safe_dump(rule, sort_keys=False, width=118)
    (folder / "prometheus-rule.yaml").write_text(HEAD + text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(__file__).parent)
