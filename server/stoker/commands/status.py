"""`stoker status`: the servers of a workspace that run on this machine."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stoker.commands.running_server import add_choice_of_servers, ask_server, chosen_servers
from stoker.commands.terminal import add_json_argument, note, print_json, table
from stoker.errors import OperatorError
from stoker.settings.versions import ON_DEMAND

if TYPE_CHECKING:
    from stoker.supervisor.server_record import ServerRecord

_READY: Final = "READY"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = (
        "The servers themselves are asked, with the admin key of the workspace. Exit code 0 if all are ready, but "
        "for those that drain after a reload, 1 if one is not, 2 if none runs here."
    )
    add_choice_of_servers(parser)
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """List the servers with their states."""
    from stoker.settings.workspace import Workspace
    from stoker.supervisor.server_record import running_servers

    chosen = chosen_servers(args)
    # A server that was reloaded has a successor at its address, which would answer in its place.
    last = {record.uri: record for record in running_servers(Workspace.find(args.workspace))}
    ahead = [record for record in chosen if last.get(record.uri, record) == record]
    states = [ServerState(record, draining=True) for record in chosen if record not in ahead]
    states += [observe_server(record, args.workspace) for record in ahead]
    if args.json:
        print_json([each.to_json() for each in states])
    else:
        header = ("ADDRESS", "PID", "UP", "READY", "MODELS")
        sys.stdout.write(table([header, *(each.row(time.time()) for each in states)]))
        for each in states:
            if each.trouble:
                note(f"stoker status: {each.record.uri}: {each.trouble}")
    return 0 if all(each.ready or each.draining for each in states) else 1


@dataclass(slots=True)
class ServerState:
    """A server and its state.

    Attributes:
        models: Its models as the index of the model repository has them; None if it does not say.
        draining: Whether it only answers accepted requests, and a successor has its address.
        trouble: Why it says nothing.
    """

    record: ServerRecord
    ready: bool = False
    models: Sequence[dict[str, Any]] | None = None
    draining: bool = False
    trouble: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the server as JSON has it."""
        return {
            "uri": self.record.uri,
            "pid": self.record.pid,
            "started_at": datetime.fromtimestamp(self.record.started_s, UTC).isoformat(timespec="seconds"),
            "ready": self.ready,
            "draining": self.draining,
            "models": self.models,
        }

    def row(self, now_s: float) -> tuple[str, ...]:
        """Return the cells of its line in the table."""
        models = "-" if self.models is None else _models_text(self.models)
        up = _uptime_text(now_s - self.record.started_s)
        ready = "draining" if self.draining else "yes" if self.ready else "no"
        return self.record.uri, str(self.record.pid), up, ready, models


def observe_server(record: ServerRecord, workspace: Path | None) -> ServerState:
    """Ask a server for its models.

    Args:
        workspace: The workspace that has its admin key; None for the one of the current folder.
    """
    # That needs no key, which is sent to this machine's loopback alone.
    state = ServerState(record, _is_ready(record, workspace))
    try:
        state.models = json.loads(ask_server(record, workspace, "/v2/repository/index", "POST"))
    except OperatorError as error:
        state.trouble = str(error).splitlines()[0]
    return state


def _is_ready(record: ServerRecord, workspace: Path | None) -> bool:
    try:
        ask_server(record, workspace, "/v2/health/ready")
    except OperatorError:
        return False
    return True


def _models_text(models: Sequence[dict[str, Any]]) -> str:
    """The models that are loaded or should be, and how many others can be loaded on demand."""
    texts = [_model_text(model) for model in models if model.get("reason") != ON_DEMAND]
    if len(texts) < len(models):
        texts.append(f"{len(models) - len(texts)} not loaded, on demand")
    return ", ".join(texts) or "none"


def _model_text(model: dict[str, Any]) -> str:
    name = f"{model['name']}:{model['version']}" if model.get("version") else str(model["name"])
    state = model.get("state", _READY)
    return name if state == _READY else f"{name} ({state.lower()})"


def _uptime_text(seconds: float) -> str:
    for unit, size_s in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size_s:
            return f"{int(seconds // size_s)} {unit}"
    return f"{max(0, int(seconds))} s"
