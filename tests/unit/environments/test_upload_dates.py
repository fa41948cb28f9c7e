"""The date of an environment, by the pins that it has."""

import json
import urllib.error
import urllib.request
from datetime import date
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from stoker.environments.files import read_environment
from stoker.environments.upload_dates import date_of_pins, upload_date
from stoker_runs.environments.dated import python_of_date


def test_the_newest_pin_says_the_date(tmp_path: Path) -> None:
    """Pins alone, conda's of a minor version and Azure's own packages too; none where nothing is pinned or known."""
    file = tmp_path / "env.yml"
    file.write_text(
        "dependencies: [numpy=1.19, keras=2, scipy==1.5.2, {pip: [tensorflow==2.4.0, "
        "azureml-defaults==1.25.0, six>=1]}]\n"
    )
    lookups: list[tuple[str, str]] = []
    days = {"tensorflow": date(2020, 12, 14), "azureml-defaults": date(2021, 3, 24)}

    def uploaded(name: str, pin: SpecifierSet) -> date | None:
        lookups.append((name, str(pin)))
        return days.get(name)

    assert date_of_pins(read_environment(file), uploaded) == date(2021, 6, 22)
    assert sorted(lookups) == [
        ("azureml-defaults", "==1.25.0"),
        ("numpy", "==1.19.*"),
        ("scipy", "==1.5.2"),
        ("tensorflow", "==2.4.0"),
    ]
    file.write_text("dependencies: [numpy, {pip: [six]}]\n")
    assert date_of_pins(read_environment(file), uploaded) is None


@pytest.mark.parametrize(
    ("day", "minor"), [("2017-01-01", 6), ("2019-07-01", 7), ("2021-03-14", 8), ("2022-12-01", 10)]
)
def test_the_python_of_a_date_was_a_year_old(day: str, minor: int) -> None:
    """Packages of then have releases for it."""
    assert python_of_date(date.fromisoformat(day)) == minor


def test_an_index_says_when_a_version_was_uploaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of its files counts; a password of the address is a header; an index may say nothing."""
    files: list[dict[str, Any]] = [
        {"filename": "Six-1.16.0.tar.gz", "upload-time": "2021-05-05T14:18:17.2Z"},
        {"filename": "six-1.16.0-py2.py3-none-any.whl", "upload-time": "2021-05-05T14:18:16Z"},
        {"filename": "six-1.17.0.tar.gz", "upload-time": "2024-12-04T17:35:26Z"},
        {"filename": "six-1.16.0.exe", "upload-time": "2020-01-01T00:00:00Z"},
        {"filename": "six-1.15.0.tar.gz"},
    ]
    requests: list[urllib.request.Request] = []

    def answer(request: urllib.request.Request, timeout: float) -> BytesIO:
        del timeout
        requests.append(request)
        return BytesIO(json.dumps({"files": files}).encode())

    monkeypatch.setattr(urllib.request, "urlopen", answer)
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://me:p%40ss@example.org/simple/")
    assert upload_date("Six", SpecifierSet("==1.16")) == date(2021, 5, 5)
    assert upload_date("six", SpecifierSet("==1.15.0")) is None
    assert upload_date("six", SpecifierSet("==1.*")) == date(2024, 12, 4)
    assert requests[0].full_url == "https://example.org/simple/six/"
    assert requests[0].get_header("Authorization") == "Basic bWU6cEBzcw=="
    monkeypatch.setenv("UV_DEFAULT_INDEX", "file:///wheels")
    assert upload_date("six", SpecifierSet("==1.16.0")) is None

    def fail_to_connect(*_: Any, **__: Any) -> BytesIO:
        raise urllib.error.URLError("no route")

    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://example.org/simple")
    monkeypatch.setattr(urllib.request, "urlopen", fail_to_connect)
    assert upload_date("six", SpecifierSet("==1.16.0")) is None
