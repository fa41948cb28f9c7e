"""Print the figures of `make house`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from statistics import median
from typing import Final

import grimp
from tests.house.classes import widths_of_classes
from tests.house.code_lines import code_lines_by_place
from tests.house.decisions import decisions_by_number, linked_decisions
from tests.house.documentation import count_words
from tests.house.headings import find_headings
from tests.house.sources import PACKAGES, ROOT, modules, product_modules
from tests.house.surface import count_commands, count_settings
from tests.house.words import find_riddles_in_names, find_riddles_in_texts
from tests.model_path import model_path
from tests.row_path import row_path

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


def main() -> None:
    """Print the figures."""
    print_packages()
    print_code_lines()
    print_shape_of_modules()
    path = row_path()
    print(f"a row's path: {len(path)} modules: {', '.join(path)}")
    for title, walk in zip(("to its process", "to its session"), model_path(), strict=True):
        print(
            f"a model's path {title}: {len(walk.modules)} modules, {len(walk.climbs)} climbs, "
            f"{walk.returns} returns: {', '.join(walk.modules)}"
        )
    print_decisions()
    print_documentation()
    print_surface()


def print_packages() -> None:
    """Print how large each package is, and how its modules are joined."""
    # An older commit has fewer distributions.
    packages = [name for name, folder in PACKAGES.items() if (ROOT / folder / name / "__init__.py").is_file()]
    graph = grimp.build_graph(*packages, cache_dir=None)
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


def print_code_lines() -> None:
    """Print the lines of code outside tests, by package and in sum."""
    lines = code_lines_by_place()
    for place, count in sorted(lines.items()):
        print(f"code: {place}: {count} lines")
    print(f"code: {lines.total()} lines outside tests, without docstrings, comments, blank lines and imports")


def print_shape_of_modules() -> None:
    """Print headings inside modules, the widest classes, and words that a stranger does not understand."""
    product = list(product_modules())
    tests = [module for module in modules() if module.is_test]
    for title, chosen in (("outside tests", product), ("in tests", tests)):
        headings = sum(len(list(find_headings(module))) for module in chosen)
        names = sum(len(list(find_riddles_in_names(module))) for module in chosen)
        texts = sum(len(list(find_riddles_in_texts(module))) for module in chosen)
        print(f"{title}: {headings} headings inside modules, {names} riddles in names, {texts} in texts")
    for width, name in widths_of_classes(product)[:5]:
        print(f"widest classes: {width} attributes: {name}")


def print_decisions() -> None:
    """Print how many of the decisions that bind code are named in the code, and those that are not."""
    decisions, linked = decisions_by_number(), linked_decisions()
    binding = {number for number, binds in decisions.items() if binds}
    print(f"decisions: {len(binding & linked)} of {len(binding)} that bind code are named there")
    print(f"decisions: not named: {_listed(binding - linked)}")
    print(f"decisions: stale or without code: {_listed(decisions.keys() - binding)}")


def _listed(numbers: Collection[int]) -> str:
    return ", ".join(map(str, sorted(numbers))) or "none"


def print_documentation() -> None:
    """Print the words of the documentation, with and without the decisions."""
    pages, words = count_words("**/*.md")
    _, words_of_decisions = count_words("decisions/*.md")
    print(f"docs: {words} words on {pages} pages")
    print(f"docs: {words_of_decisions} words of decisions, {words - words_of_decisions} of the other pages")


def print_surface() -> None:
    """Print how much an operator can set."""
    of_servers, of_models = count_settings()
    commands, options = count_commands()
    print(f"settings: {of_servers} of a server, {of_models} of a model")
    print(f"commands: {commands} with {options} options")


if __name__ == "__main__":
    main()
