"""The process that measures a model: its time limit and its failures."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.patience import PATIENCE_S

from stoker.errors import InvalidSettings, LoadFailed, LoadTimeout, OperatorError
from stoker.profiling import measuring_process
from stoker.profiling.measuring import Order
from stoker.profiling.measuring_process import _LoadLimit, measure_in_process


def test_a_load_beyond_its_limit_is_killed() -> None:
    """The process is killed when the announced time is up, unless it reports its next step before."""
    killed = threading.Event()
    patient = _LoadLimit(killed.set)
    patient.receive({"step": "loading m", "load_timeout_s": 3600})
    patient.receive({"step": "measuring"})
    patient.check()
    late = _LoadLimit(killed.set)
    late.receive({"step": "loading m", "load_timeout_s": 0})
    assert killed.wait(PATIENCE_S)
    with pytest.raises(LoadTimeout, match="loading m took longer than 0 s"):
        late.check()


def run_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> list[dict[str, object]]:
    """Run a program instead of the measuring one, whose messages go to the file descriptor `out`."""
    (tmp_path / "puppet_measuring.py").write_text(f"import os, sys\nout = int(sys.argv[2])\n{program}\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(measuring_process, "_MEASURING", "puppet_measuring")
    reports: list[dict[str, object]] = []
    order = Order("digits", None, None, {}, "auto", 10.0, 1, 1.0)
    measured = measure_in_process(order, reports.append)
    return [*reports, measured]


def test_measurements_follow_the_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step is reported; the last message has the measurements."""
    program = """os.write(out, b'{"step": "loading"}\\\\n{"measured": {"name": "digits"}}\\\\n')"""
    assert run_program(tmp_path, monkeypatch, program.replace("\\\\", "\\")) == [
        {"step": "loading"},
        {"name": "digits"},
    ]


@pytest.mark.parametrize("kind", [InvalidSettings, LoadFailed])
def test_an_error_of_the_process_keeps_its_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[OperatorError]
) -> None:
    """The command ends with the exit code that the process has named."""
    program = f"""os.write(out, b'{{"error": "no", "exit_code": {kind.exit_code}}}\\n')"""
    with pytest.raises(kind, match=r"^no$"):
        run_program(tmp_path, monkeypatch, program)


def test_a_process_that_dies_is_reported_with_its_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the model and the last line of the process's output."""
    with pytest.raises(LoadFailed, match=r"the process that measured digits .*: out of luck"):
        run_program(tmp_path, monkeypatch, "sys.exit('out of luck')")
