"""`stoker offline` as the pods of a Job run it: shards in processes of their own, interrupted and run again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.live_server import wait_until
from tests.patience import PROGRAM_S
from tests.tiny_models import BODY_SCRIPT, Gate, write_script


def offline(*arguments: object) -> subprocess.Popen[str]:
    """Start the command."""
    command = [sys.executable, "-m", "stoker.cli", "offline", *map(str, arguments), "--device", "cpu"]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    )


def wait_for(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit code, output and errors."""
    output, errors = process.communicate(timeout=300)
    return process.returncode, output, errors


def test_four_shards_have_a_million_rows(
    tmp_path: Path, model: Path, rows: np.ndarray, answers: np.ndarray
) -> None:
    """Their parts one after the other are what a server answers, bit for bit."""
    np.save(tmp_path / "rows.npy", rows)
    shards = [
        offline(
            model, "--input", tmp_path / "rows.npy", "--output", tmp_path / "out", "--shard", f"{number}/4"
        )
        for number in range(4)
    ]
    counts = []
    for shard in shards:
        code, output, errors = wait_for(shard)
        assert code == 0, errors
        counts.append(int(output.removeprefix("1 file with ").partition(" rows")[0]))
    assert (sum(counts), max(counts) - min(counts)) == (len(rows), 256)
    parts = [np.load(tmp_path / "out" / f"rows-{number:05}-of-00004.npy") for number in range(4)]
    assert np.concatenate(parts).tobytes() == answers.tobytes()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_shard_goes_on(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """Complete answers stay and are not made again, partial ones are removed, and the next run does the rest."""
    script = write_script(tmp_path / "body", BODY_SCRIPT)
    gate = Gate(script.parent)
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "a.jsonl").write_text('{"data": [[1, 2]]}\n')
    (tmp_path / "rows" / "b.jsonl").write_text('{"data": [[3]], "tell": "hold"}\n')
    arguments = (script, "--input", tmp_path / "rows", "--output", tmp_path / "out")
    process = offline(*arguments)
    wait_until(lambda: gate.entered, "the second file is scored", timeout_s=PROGRAM_S)
    os.kill(process.pid, number)
    gate.open()
    assert wait_for(process)[0] == code
    left = sorted(path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.*"))
    assert left == ["_done/a.json", "a.jsonl"]
    assert (tmp_path / "out" / "a.jsonl").read_text() == "[3]\n"
    code, output, errors = wait_for(offline(*arguments))
    assert (code, output) == (0, f"1 file with 1 row in {tmp_path / 'out'}, 1 done before\n"), errors
