"""Write Stoker's dashboards: `make dashboards`.

Each file of `dashboards/` is one, for Grafana 10 or later; they are made here because a change of a label is one line
then, and a page of JSON otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from fleet import fleet
from gpus import gpus
from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from models import models
from service import service

DASHBOARDS: Final[dict[str, Callable[[], Dashboard]]] = {
    "service": service,
    "models": models,
    "gpus": gpus,
    "fleet": fleet,
}


def write(folder: Path) -> None:
    """Write each of them as `NAME.json` into a folder."""
    for name, made in DASHBOARDS.items():
        text = JSONEncoder(sort_keys=True, indent=1).encode(made().build())
        (folder / f"{name}.json").write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    write(Path(__file__).parent / "dashboards")
