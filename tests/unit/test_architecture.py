"""Pages for readers of the code: its packages, and the names that a request meets."""

import ast
import re
from pathlib import Path

import pytest

import stoker
import stoker_azure
import stoker_bench
import stoker_cluster
import stoker_runs
import stoker_torchserve
import stoker_training

PACKAGES = [
    Path(str(package.__file__)).parent
    for package in (
        stoker,
        stoker_azure,
        stoker_bench,
        stoker_cluster,
        stoker_runs,
        stoker_torchserve,
        stoker_training,
    )
]
ROOT = Path(__file__).parents[2]
DOCS = ROOT / "server" / "docs"
PAGE = DOCS / "architecture.md"


def is_at_home(place: str) -> bool:
    """Whether a package has `MODULE` or `MODULE.NAME`; the members of classes are not looked at."""
    return any(_is_in(package, place) for package in PACKAGES)


def _is_in(package: Path, place: str) -> bool:
    *folders, last = place.split(".")
    module = package.joinpath(*folders, last)
    if module.is_dir() or module.with_suffix(".py").is_file():
        return True
    if not folders:
        return False
    home = package.joinpath(*folders)
    source = home / "__init__.py" if home.is_dir() else home.with_suffix(".py")
    if not source.is_file():
        return _is_in(package, ".".join(folders))
    names: set[str] = set()
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                names.add(name)
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                names.add(name)
            case ast.ImportFrom() if source.name == "__init__.py":
                names.update(alias.name for alias in node.names)
    return last in names


def test_the_words_of_the_glossary_are_at_home_where_it_says() -> None:
    """Its last column names modules, and what is defined in them; a path of HTTP is neither."""
    page = (DOCS / "glossary.md").read_text(encoding="utf-8")
    rows = [row.strip("|").split("|")[-1] for row in page.splitlines() if row.startswith("| **")]
    places = [place for row in rows for place in re.findall(r"`([\w.]+)`", row)]
    assert len(places) > 40
    assert [place for place in places if not is_at_home(place)] == []


@pytest.mark.parametrize(("name", "most_names"), [("life-of-a-request", 25), ("life-of-a-model", 41)])
def test_a_page_of_a_life_names_existing_code(name: str, most_names: int) -> None:
    """Each word in code font is defined in the file that its first mention leads to, and there are few of them."""
    page = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    words = set(re.findall(r"`([^`]+)`", page))
    homes = {word: DOCS / target for word, target in re.findall(r"\[`([^`]+)`\]\(([^)]+)\)", page)}
    assert words == set(homes)
    assert len(words) <= most_names
    for word, home in homes.items():
        tree = ast.parse(home.read_text(encoding="utf-8"))
        defined = {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
        assert word in defined, f"{home} does not define {word}"
