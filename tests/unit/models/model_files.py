"""Files of models in tests."""

from pathlib import Path


def touch(root: Path, *files: str) -> Path:
    """Create empty files and their folders below `root`; a trailing slash makes a folder."""
    for name in files:
        path = root / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.touch()
    return root
