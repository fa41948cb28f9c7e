"""The page on the architecture names every module of the server, and none that is not there."""

import re
from pathlib import Path

import stoker

SERVER = Path(stoker.__file__).parent
PAGE = Path(__file__).parents[2] / "server" / "docs" / "architecture.md"


def named_modules() -> set[Path]:
    """The modules that the table names: a name without its folder is in the folder of the one before it."""
    table = PAGE.read_text(encoding="utf-8").partition("| module | what it is |")[2]
    found: set[Path] = set()
    for row in table.splitlines():
        folder = Path()
        for name in re.findall(r"`([\w/]+)`", row.removeprefix("|").partition("|")[0]):
            if name.endswith("/"):
                covered = next(place for place in (folder / name, Path(name)) if (SERVER / place).is_dir())
                found.update(module.relative_to(SERVER) for module in (SERVER / covered).rglob("*.py"))
                continue
            # A name with folders begins anew; so does one at the top of the package.
            inside = folder / f"{name}.py"
            path = inside if "/" not in name and (SERVER / inside).is_file() else Path(f"{name}.py")
            found.add(path)
            folder = path.parent
    return found


def test_the_table_of_modules_is_complete() -> None:
    """Each module stands in the table of architecture.md, and the table names no other."""
    present = {module.relative_to(SERVER) for module in SERVER.rglob("*.py")}
    listed = {module for module in present if module.name not in {"__init__.py", "__main__.py"}}
    named = named_modules()
    assert named - present == set()
    assert listed - named == set()
