"""The git properties of a source folder, with Azure's names."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Final

__all__ = ["git_properties"]

_TIMEOUT_S: Final = 5.0
_CREDENTIALS: Final = re.compile(r"(?<=://)[^/@]+@")


def git_properties(source: Path) -> dict[str, str]:
    """Return repository, branch, commit and whether there are changes; empty if the folder is in no repository.

    Credentials are removed from the repository's URL.
    """
    commit = _said(source, "rev-parse", "HEAD")
    if commit is None:
        return {}
    branch = _said(source, "rev-parse", "--abbrev-ref", "HEAD") or ""
    address = _CREDENTIALS.sub("", _said(source, "config", "--get", "remote.origin.url") or "")
    dirty = _said(source, "status", "--porcelain", "--untracked-files=no", "--", ".")
    facts = {
        "azureml.git.repository_uri": address,
        "azureml.git.branch": branch,
        "azureml.git.commit": commit,
        "azureml.git.dirty": str(bool(dirty)),
        "mlflow.source.git.repoURL": address,
        "mlflow.source.git.branch": branch,
        "mlflow.source.git.commit": commit,
    }
    return {name: value for name, value in facts.items() if value}


def _said(source: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(source), "--no-optional-locks", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
