"""The unit of systemd, as systemd itself reads it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.image.podman import ROOT
from tests.patience import PROGRAM_S

pytestmark = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze; apt-get install systemd"
)
STOKER = "/opt/stoker/venv/bin/stoker"


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit with a command that there is on this machine."""
    text = (ROOT / "deploy/systemd/stoker.service").read_text()
    assert text.count(STOKER) == 1
    path = tmp_path / "stoker.service"
    path.write_text(text.replace(STOKER, str(Path(sys.executable).parent / "stoker")))
    return path


def analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run systemd-analyze."""
    return subprocess.run(
        ["systemd-analyze", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
        check=False,
    )


def test_the_unit_is_well_formed(unit: Path) -> None:
    """Every option is known and has a value that it may have."""
    analysis = analyze("verify", "--man=no", unit)
    assert (analysis.returncode, analysis.stdout + analysis.stderr) == (0, "")

    unit.write_text(unit.read_text().replace("KillMode=mixed", "KillMode=everything"))
    assert "everything" in analyze("verify", "--man=no", unit).stderr


def test_the_unit_is_confined_and_sees_its_gpus(unit: Path) -> None:
    """Its exposure is low, and what stays open is what GPUs and callers need."""
    analysis = analyze("security", "--offline=yes", "--threshold=30", unit)
    assert analysis.returncode == 0, analysis.stdout
    open_yet = set(re.findall(r"^✗ (\w+)=", analysis.stdout, re.MULTILINE))
    assert {"PrivateDevices", "DeviceAllow", "MemoryDenyWriteExecute", "ProcSubset"} <= open_yet
    assert not open_yet & {"NoNewPrivileges", "ProtectSystem", "CapabilityBoundingSet", "RestrictNamespaces"}
