"""The targets that people and CI call are there, each once."""

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = Counter(re.findall(r"^([a-z][a-z-]*):(?!=)", MAKEFILE, re.MULTILINE))


def test_no_target_is_made_twice() -> None:
    """Make would take the last recipe, with a warning that nobody reads."""
    assert {name for name, times in TARGETS.items() if times > 1} == set()


def test_phony_targets_are_those_with_help() -> None:
    """The list of phony targets and the targets with a help text are the same."""
    phony = re.search(r"^\.PHONY: (.+)$", MAKEFILE, re.MULTILINE)
    assert phony is not None
    assert set(phony[1].split()) == set(TARGETS)


def test_targets_in_the_pages_exist() -> None:
    """Each `make NAME` of the pages and of CONTRIBUTING is a target."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "server" / "docs").rglob("*.md")]
    called = {
        name
        for page in pages
        for name in re.findall(r"(?:`|^\$ )make ([a-z-]+)", page.read_text(), re.MULTILINE)
    }
    assert called
    assert called - set(TARGETS) == set()
