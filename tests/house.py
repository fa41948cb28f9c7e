"""`make house`: how large the code is, how its modules are joined, and how long its documentation is.

Prints one line a figure, so that two commits can be compared by `diff`.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from statistics import median
from typing import Final

import grimp
from tests.row_path import row_path

ROOT: Final = Path(__file__).parents[1]
PACKAGES: Final = {
    "stoker": "server",
    "stoker_base": "server/stoker_base",
    "stoker_cluster": "server/stoker_cluster",
    "stoker_torchserve": "server/stoker_torchserve",
    "stoker_runs": "runs",
    "stoker_training": "models",
    "stoker_azure": "azure-ml",
    "stoker_client": "clients",
    "stoker_run": "runs/agent",
    "stoker_bench": "loadtests",
}
"""Each package, and the folder of its distribution."""
SHORT_LINES: Final = 60


def modules_of(package: str) -> dict[str, int]:
    """Lines by module, without tests."""
    folder = ROOT / PACKAGES[package]
    return {
        ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__"): len(
            path.read_text(encoding="utf-8").splitlines()
        )
        for path in sorted((folder / package).rglob("*.py"))
    }


def floors(graph: grimp.ImportGraph, package: str) -> int:
    """The longest way down through the imports between the rooms, the direct children, of a package."""
    rooms = {child: child.rpartition(".")[2] for child in graph.find_children(package)}
    below: dict[str, set[str]] = {room: set() for room in rooms.values()}

    def room_of(module: str) -> str | None:
        parts = module.split(".")
        return parts[1] if parts[0] == package and len(parts) > 1 else None

    for module in graph.modules:
        room = room_of(module)
        if room is not None:
            for imported in graph.find_modules_directly_imported_by(module):
                other = room_of(imported)
                if other not in (None, room):
                    below[room].add(str(other))
    depths: dict[str, int] = {}

    def depth(room: str, above: frozenset[str] = frozenset()) -> int:
        if room not in depths:
            lower = below[room] - above
            depths[room] = 1 + max((depth(other, above | {room}) for other in lower), default=0)
        return depths[room]

    return max((depth(room) for room in below), default=1)


def words_of_docs() -> tuple[int, int]:
    """Pages and words below `server/docs`."""
    pages = list((ROOT / "server" / "docs").rglob("*.md"))
    return len(pages), sum(len(page.read_text(encoding="utf-8").split()) for page in pages)


def main() -> None:
    """Print the figures."""
    # An older commit has fewer distributions.
    packages = [name for name, folder in PACKAGES.items() if (ROOT / folder / name / "__init__.py").is_file()]
    graph = grimp.build_graph(*packages)
    total: Counter[str] = Counter()
    for package in packages:
        modules = modules_of(package)
        importers = {
            module: len(graph.find_modules_that_directly_import(module))
            for module in modules
            if module in graph.modules
        }
        lines = list(modules.values())
        total.update(lines=sum(lines), modules=len(lines))
        single = sum(count == 1 for count in importers.values())
        short = sum(count <= SHORT_LINES for count in lines)
        print(
            f"{package}: {sum(lines)} lines in {len(lines)} modules, median {median(lines):.0f}, "
            f"largest {max(lines)}, {short} of at most {SHORT_LINES} lines, {single} with one importer, "
            f"{len(graph.find_children(package))} rooms on {floors(graph, package)} floors"
        )
    print(f"all: {total['lines']} lines in {total['modules']} modules")
    path = row_path()
    print(f"a row's path: {len(path)} modules: {', '.join(path)}")
    pages, words = words_of_docs()
    print(f"docs: {words} words on {pages} pages")


if __name__ == "__main__":
    main()
