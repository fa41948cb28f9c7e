"""The figures of `make house`: each counts as it says."""

import ast
import gc
import re
from collections.abc import Callable, Iterator

import pytest
from tests.house.classes import widths_of_classes
from tests.house.code_lines import count_code_lines
from tests.house.decisions import decisions_by_number, linked_decisions
from tests.house.headings import find_headings
from tests.house.sources import PACKAGES, Module, modules, product_modules
from tests.house.words import find_riddles_in_names, find_riddles_in_texts


@pytest.fixture(scope="module", autouse=True)
def collections_later() -> Iterator[None]:
    """Two million nodes of syntax trees stay until the end, and each collection would look at them."""
    gc.disable()
    yield
    modules.cache_clear()
    gc.enable()


def module(text: str) -> Module:
    return Module("m.py", text)


def test_code_lines_leave_out_docstrings_comments_and_imports() -> None:
    """A call over two lines counts as two; blank lines, docstrings, comments and imports do not count."""
    text = '"""A module."""\n\nimport os\n\n\ndef f():\n    """Call."""\n    # Why.\n    os.stat(\n        ".")\n'
    assert count_code_lines(module(text)) == 3


def test_heading_is_a_comment_between_empty_lines() -> None:
    """Comments at the code that they explain, and such inside functions, are no headings; drawn lines are."""
    text = "a = 1  # why\n# Why.\nb = 1\n\n# Readers.\n\nc = 1\n\n\ndef f():\n\n    # Why.\n\n    return 1\n# --- x\n"
    assert list(find_headings(module(text))) == ["m.py:5: # Readers.", "m.py:15: # --- x"]


def test_width_of_a_class_counts_assigned_attributes() -> None:
    """A record counts once a method assigns one of its fields."""
    plain = "@dataclass\nclass Plain:\n    a: int\n    b: int\n    def f(self):\n        return self.a\n"
    record = "@dataclass\nclass Record:\n    a: int\n    b: int\n    def f(self):\n        self.a += 1\n"
    wide = "class Wide:\n    def f(self):\n        self.a, self.b = self.c = 1, 2\n"
    assert widths_of_classes([module(plain + record + wide)]) == [(3, "m.py: Wide"), (2, "m.py: Record")]


def test_riddles_in_names_are_whole_words_of_definitions() -> None:
    """A word within another word is none, nor is a participle that says more about a noun."""
    text = "def _held(what, held_rows):\n    somewhere = 1\n    self.said_so = whole = 2\ndef test_that_x(): pass\n"
    names = [place.rpartition(" ")[2] for place in find_riddles_in_names(module(text))]
    assert sorted(names) == ["_held", "said_so", "test_that_x", "what"]


def test_riddles_in_texts_are_statements_that_begin_as_questions() -> None:
    """Docstrings, comments and help texts count; real questions do not."""
    text = '"""What it does."""\n\n# Whose it is.\na = help("who may")\nb = "Who is it?"\n'
    found = [place.partition(": ")[2] for place in find_riddles_in_texts(module(text))]
    assert found == ["'What it does.'", "# Whose it is."]


def test_superseded_decisions_bind_no_code() -> None:
    """A decision that another one replaced, or that is history, binds nothing; one replaced in part does."""
    decisions = decisions_by_number()
    assert decisions[1]
    assert decisions[16]
    assert not decisions[10]
    assert not decisions[18]


WIDE_CLASSES = {"azure-ml/stoker_azure/sdk/run_configuration.py: RunConfiguration"}
"""Azure names its attributes."""


@pytest.mark.parametrize("find", [find_headings, find_riddles_in_names, find_riddles_in_texts])
def test_code_has_no_headings_and_no_riddles(find: Callable[[Module], Iterator[str]]) -> None:
    """A heading that parts a file asks for two files, a name or text that begins as a question for plain words."""
    assert [place for module in modules() for place in find(module)] == []


def test_no_class_has_more_than_15_attributes() -> None:
    """Plain records, which only hold their fields, may have more."""
    wide = {name for width, name in widths_of_classes(product_modules()) if width > 15}
    assert wide == WIDE_CLASSES


def test_modules_import_no_private_names_of_each_other() -> None:
    """A name that another module imports has no underscore."""
    private = [
        f"{module.path}:{node.lineno}: {alias.name}"
        for module in product_modules()
        for node in module.nodes
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in PACKAGES
        for alias in node.names
        if alias.name.startswith("_") and alias.name != "__version__"
    ]
    assert private == []


def test_code_names_each_decision_that_binds_it() -> None:
    """A comment or docstring at the place says `decision 36`."""
    binding = {number for number, binds in decisions_by_number().items() if binds}
    assert binding - linked_decisions() == set()


def test_no_test_replaces_the_time_of_all_threads() -> None:
    """`tests.own_time` replaces it for the code under test: threads that earlier tests have left use it too."""
    assert [
        m.path for m in modules() if m.is_test and re.search(r"setattr\(\s*([\w.]+\.)?time,", m.text)
    ] == []
