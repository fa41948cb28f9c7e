"""Extensions of the server that are not installed, or lack a package."""

from typing import Any

import pytest

from stoker.errors import OperatorError
from stoker.system import extensions


def test_extension_without_its_distribution_names_the_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The message begins with the purpose and ends with the command."""
    monkeypatch.setattr(extensions, "find_extension", lambda _: None)
    with pytest.raises(OperatorError, match=r"^profiling needs a package that is not installed; install "):
        extensions.require_extension("bench", "profiling")


def test_extension_that_lacks_a_package_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The distribution is there, and a module that it imports is not."""

    def find(_name: str) -> Any:
        raise ModuleNotFoundError("No module named 'psutil'", name="psutil")

    monkeypatch.setattr(extensions, "find_extension", find)
    with pytest.raises(OperatorError, match=r"^this needs psutil, which is not installed; .*pip install"):
        extensions.require_extension("bench")
