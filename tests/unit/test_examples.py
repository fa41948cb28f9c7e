"""The examples of property tests: a failure can be repeated by running its test alone."""

import importlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st


def draw_integers() -> list[int]:
    """Draw the examples of one strategy."""
    drawn = []

    @given(st.integers())
    @settings(max_examples=300)
    def collect(number: int) -> None:
        drawn.append(number)

    collect()
    return drawn


def test_examples_do_not_depend_on_the_modules_that_other_tests_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The constants of a module that has been loaded meanwhile are no examples."""
    before = draw_integers()
    numbers = range(1_234_567, 1_234_667)
    (tmp_path / "module_with_numbers.py").write_text(f"NUMBERS = {[*numbers]}\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("module_with_numbers")
    assert draw_integers() == before
    assert not {*before} & {*numbers}
