"""The names of files, folders and modules that pages use: each is to exist."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from tests.house.sources import PACKAGES

_FILE: Final = re.compile(
    r"`([a-z][\w/.-]*/[\w.-]+\.py|(?:server|clients|runs/stoker_runs|runs/agent|azure-ml|models|loadtests|tests|deploy)/[a-z][\w/.-]*)`"
)
_MODULE: Final = re.compile(r"`((?:stoker|stoker_[a-z]+)(?:\.\w+)+)`")


def stale_names(root: Path, pages: Iterable[Path]) -> Iterator[str]:
    """Yield a line for each file, folder, module or member of one that pages name and `root` lacks."""
    tops = dict.fromkeys(Path(folder).parts[0] for folder in PACKAGES.values())
    texts = [path.read_text(encoding="utf-8") for top in tops for path in (root / top).rglob("*.py")]
    for page in pages:
        text = (root / page).read_text(encoding="utf-8")
        for name in dict.fromkeys(_FILE.findall(text)):
            places = (
                root,
                (root / page).parent,
                root / "server/stoker",
                *(root / folder for folder in PACKAGES.values()),
            )
            if not any((place / name).exists() for place in places):
                yield f"{page} names {name}, which is not there"
        for name in dict.fromkeys(_MODULE.findall(text)):
            # Spans, loggers and groups of entry points have such names too.
            if not _is_in_module(root, name) and not any(
                f"{quote}{name}" in source for quote in "\"'" for source in texts
            ):
                yield f"{page} names {name}, which is not there"


def _is_in_module(root: Path, name: str) -> bool:
    """Whether a dotted name is a module, or the beginning of it is one that has a word for the rest."""
    for folder in PACKAGES.values():
        at, parts = root / folder, name.split(".")
        while parts and (at / parts[0]).is_dir():
            at /= parts.pop(0)
        if at == root / folder:
            continue
        file = at / "__init__.py"
        if parts and (at / f"{parts[0]}.py").is_file():
            file = at / f"{parts.pop(0)}.py"
        if not parts:
            return True
        if file.is_file() and re.search(rf"\b{parts[0]}\b", file.read_text(encoding="utf-8")):
            return True
    return False
