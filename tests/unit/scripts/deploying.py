"""Deployments of scripts in tests."""

from pathlib import Path
from typing import Any

from stoker.deployment import Deployment


def deployment(path: Path = Path("score.py"), **settings: Any) -> Deployment:
    """The deployment of a script with these settings."""
    return Deployment(
        "digits",
        1,
        "script",
        path,
        path.parent,
        **{"max_batch_rows": 32, "max_body_bytes": 1 << 22, **settings},
    )
