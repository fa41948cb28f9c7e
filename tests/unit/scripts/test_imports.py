"""Imports of an entry script, read without running it."""

import sys
from pathlib import Path

import pytest

from stoker.scripts.imports import find_missing, read_imports


def imports_of(folder: Path, files: dict[str, str]) -> dict[str, tuple[str, bool]]:
    """The place and the need of each package that `score` and the files beside it import."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    found = read_imports(folder / "score.py", [folder])
    return {each.name: (each.place, each.needed) for each in found}


def test_imports_of_the_module_and_of_init_and_run_are_needed(tmp_path: Path) -> None:
    """Others are needed only if the function that imports them is called."""
    script = (
        "import a.b, c\nfrom d.e import f\n"
        "def init():\n import g\ndef run(x):\n import h\ndef other():\n import i\n"
    )
    assert imports_of(tmp_path, {"score.py": script}) == {
        "a": ("score.py:1", True),
        "c": ("score.py:1", True),
        "d": ("score.py:2", True),
        "g": ("score.py:4", True),
        "h": ("score.py:6", True),
        "i": ("score.py:8", False),
    }


@pytest.mark.parametrize("caught", ["ImportError", "(OSError, ModuleNotFoundError)", "Exception", ""])
def test_import_with_a_fallback_is_not_needed(tmp_path: Path, caught: str) -> None:
    """Neither an import that may fail nor its fallback is needed."""
    script = f"try:\n import a\nexcept {caught}:\n import b\nelse:\n import c\n"
    needs = {name: needed for name, (_, needed) in imports_of(tmp_path, {"score.py": script}).items()}
    assert needs == {"a": False, "b": False, "c": True}


def test_another_exception_does_not_excuse_a_missing_package(tmp_path: Path) -> None:
    """An import in a `try` that catches another exception is needed."""
    assert imports_of(tmp_path, {"score.py": "try:\n import a\nexcept OSError:\n pass\n"}) == {
        "a": ("score.py:2", True)
    }


def test_imports_for_type_checkers_are_not_listed(tmp_path: Path) -> None:
    """Imports below `if TYPE_CHECKING` are not listed; those below its `else` are."""
    script = "if TYPE_CHECKING:\n import a\nelse:\n import b\nif typing.TYPE_CHECKING:\n import c\n"
    assert list(imports_of(tmp_path, {"score.py": script})) == ["b"]


def test_a_need_outweighs_an_earlier_import_that_is_caught(tmp_path: Path) -> None:
    """The place is that of the import that would fail."""
    script = "try:\n import a\nexcept ImportError:\n pass\nimport a\n"
    assert imports_of(tmp_path, {"score.py": script}) == {"a": ("score.py:5", True)}


def test_modules_beside_the_script_are_followed(tmp_path: Path) -> None:
    """Their imports count as the script's; a circle and a broken module do not matter."""
    files = {
        "score.py": "import helper\nfrom package import part\nfrom package.part import x\nimport plain, broken\n",
        "helper.py": "import score, deep\n",
        "package/__init__.py": "from . import part\nimport of_package\n",
        "package/part.py": "import of_part\n",
        "plain/other.py": "",
        "broken.py": "import (\n",
    }
    found = imports_of(tmp_path, files)
    assert found == {
        "deep": ("helper.py:1", True),
        "of_package": ("__init__.py:2", True),
        "of_part": ("part.py:1", True),
    }


def test_a_script_that_is_no_python_raises_a_syntax_error(tmp_path: Path) -> None:
    """The caller of `read_imports` reports the error."""
    (tmp_path / "score.py").write_text("def run(:\n")
    with pytest.raises(SyntaxError):
        read_imports(tmp_path / "score.py", [tmp_path])


def test_packages_that_the_interpreter_lacks_are_missing(tmp_path: Path) -> None:
    """Packages of the server and installed packages are not missing."""
    (tmp_path / "score.py").write_text("import json, numpy, azureml.core, no_such_package\n")
    imports = read_imports(tmp_path / "score.py", [tmp_path])
    missing = find_missing(imports, Path(sys.executable), ["azureml"])
    assert [each.name for each in missing] == ["no_such_package"]
