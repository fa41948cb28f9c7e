"""Preparing a compute target for runs to come: packages and image are had, and nothing is started."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from stoker.workspace import Workspace
from stoker_runs.launch.clock import Clock
from stoker_runs.launch.submission import Request, environment_files, plan
from stoker_runs.records.record import RunRecord, new_run_id
from stoker_runs.records.snapshots import SnapshotStore
from stoker_runs.records.states import RunState
from stoker_runs.records.store import RunStore
from stoker_runs.targets.definitions import Target
from stoker_runs.targets.engine import Engine, Job
from stoker_runs.targets.registry import engine_of

__all__ = ["prepare"]


def prepare(
    request: Request,
    workspace: Workspace,
    say: Callable[[str], None],
    engine_of: Callable[[Target, Workspace], Engine] = engine_of,
) -> None:
    """Do for a run what is done before its script starts, so that the next one like it starts at once.

    Args:
        request: The run as it would be submitted.
        workspace: Where environments are kept.
        say: Is told in a line what takes time, and what is not as asked for.
        engine_of: Makes the engine of the target.

    Raises:
        OperatorError: The run would be refused, or the target cannot have what it asks for.
    """
    planned = plan(request, workspace)
    workspace.create()
    snapshot = SnapshotStore(workspace.snapshots_dir).take(request.source, request.limit_bytes)
    now_ms = Clock().now_ms()
    record = RunRecord(
        new_run_id(planned.experiment, now_ms, secrets.token_hex(4)),
        planned.experiment,
        now_ms,
        planned.definition,
        snapshot=snapshot.digest,
    )
    staging = Path(tempfile.mkdtemp(prefix=".preparing-", dir=workspace.root))
    try:
        state = RunState(since_ms=now_ms, submitted_ms=now_ms)
        folder = RunStore(staging).create(record, state, environment_files(planned, request))
        job = Job(folder, record, 1, workspace.snapshots_dir)
        engine = engine_of(planned.target, workspace)
        engine.prepare(job, say)
        engine.clean(job)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
