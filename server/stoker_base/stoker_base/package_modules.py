"""The modules that installed packages offer for import."""

import importlib
import re
from pathlib import Path
from typing import Iterable, List

_SEPARATORS = re.compile(r"[-_.]+")


def importable_modules(site_packages: str, names: Iterable[str]) -> List[str]:
    """The modules at the top of packages with these names, as far as they say so and carry their names.

    Returns:
        What can be imported, in alphabetical order; nothing for a Python before 3.8, which cannot look.
    """
    try:
        metadata = importlib.import_module("importlib.metadata")
    except ImportError:
        return []
    found = set()
    for package in metadata.distributions(path=[site_packages]):
        name = _SEPARATORS.sub("-", package.metadata["Name"] or "").lower()
        if name in names:
            files = [Path(str(file)) for file in package.files or ()]
            tops = {file.parts[0] for file in files if file.name == "__init__.py"}
            tops |= {file.stem for file in files if len(file.parts) == 1 and file.suffix == ".py"}
            plain = {top for top in tops if top.isidentifier() and not top.startswith("_")}
            # A package may bring tests and examples along at the top: those are not what was named.
            same = {top for top in plain if _SEPARATORS.sub("-", top).lower() == name}
            found |= same or (plain if len(plain) == 1 else set())
    return sorted(found)
