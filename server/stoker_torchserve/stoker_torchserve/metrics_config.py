"""TorchServe's `metrics.yaml`: the metrics that handlers find in `context.metrics`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from stoker.settings.files import settings_text
from stoker.settings.yaml_files import SettingsLoader

METRICS_FILE_VARIABLE: Final = "TS_METRICS_CONFIG"
"""Names the file to the process of a handler, as TorchServe's own variable does."""
METRIC_TYPES: Final = ("counter", "gauge", "histogram")
_SECTIONS: Final = ("dimensions", "ts_metrics", "model_metrics", "mode")


class DeclaredMetric(NamedTuple):
    """A metric of handlers; `kind` is one of `METRIC_TYPES`."""

    kind: str
    name: str
    unit: str
    dimensions: tuple[str, ...]


DEFAULT_METRICS: Final = tuple(
    DeclaredMetric("gauge", name, "ms", ("ModelName", "Level")) for name in ("HandlerTime", "PredictionTime")
)
"""Those of the file that comes with TorchServe, which counts where no other is named."""


def read_metrics(file: Path) -> tuple[DeclaredMetric, ...]:
    """Read the `model_metrics` of a file.

    Raises:
        ValueError: It cannot be read, or declares a metric otherwise than by type, name, unit and dimensions.
    """
    try:
        content = yaml.load(settings_text(file), SettingsLoader)  # noqa: S506  # a safe loader
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{file} cannot be read: {error}") from error
    if not isinstance(content, dict) or not content.keys() <= set(_SECTIONS):
        raise ValueError(f"{file} needs the sections {', '.join(_SECTIONS[:3])}, and no others")
    declared = content.get("model_metrics") or {}
    if not isinstance(declared, dict) or not declared.keys() <= set(METRIC_TYPES):
        raise ValueError(f"{file}: model_metrics needs lists of metrics by type: {', '.join(METRIC_TYPES)}")
    return tuple(_metric(file, kind, one) for kind, metrics in declared.items() for one in metrics or ())


def _metric(file: Path, kind: str, content: Any) -> DeclaredMetric:
    if isinstance(content, Mapping) and content.keys() == {"name", "unit", "dimensions"}:
        name, unit, dimensions = content["name"], content["unit"], content["dimensions"] or []
        if isinstance(name, str) and isinstance(unit, str) and isinstance(dimensions, list):
            return DeclaredMetric(kind, name, unit, tuple(map(str, dimensions)))
    raise ValueError(f"{file}: a {kind} of model_metrics needs name, unit and dimensions, and nothing else")
