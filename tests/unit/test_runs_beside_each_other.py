"""Several runs of the tests at once on one machine."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from _pytest.pathlib import on_rm_rf_error


def test_runs_that_end_at_once_may_delete_the_same_folders(tmp_path: Path) -> None:
    """At its end each run deletes those of old ones; where two do so at once pytest warns, and neither fails."""
    error = OSError(errno.ENOTEMPTY, "Directory not empty")
    on_rm_rf_error(os.rmdir, str(tmp_path), error, start_path=tmp_path)
