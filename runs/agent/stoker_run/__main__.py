"""`python stoker_run.zip COMMAND …`: the agent's commands, which the contract describes."""

import argparse
import os
import sys
from pathlib import Path
from typing import List, Optional

from stoker_run import agent
from stoker_run.attempt import Refused, read_start

_REFUSED = 2
_ALREADY_STARTED = 3


def main(arguments: Optional[List[str]] = None) -> int:
    """Do what the command line says; returns the exit status."""
    options = _parser().parse_args(arguments)
    if options.command is None:
        _parser().print_usage(sys.stderr)
        return _REFUSED
    if options.command == "work":
        # Imported here: only nodes of clusters have workers.
        from stoker_run.worker import Worker, daemon_of

        daemon = daemon_of(options.daemon) if options.daemon else None
        folder = Path(options.folder)
        queue = Path(options.queue) if options.queue else folder
        Worker(folder, queue, options.idle, daemon, options.host, options.peers).run()
        return 0
    if options.command == "gang":
        from stoker_run.gang import run_gang

        run_gang(Path(options.folder), Path(options.attempt), options.cores, options.gpus)
        return 0
    if options.command == "member":
        from stoker_run.gang import run_member

        run_member(Path(options.folder), Path(options.attempt), options.node, options.host)
        return 0
    folder = Path(options.attempt).resolve()
    try:
        read_start(folder)
        lock = agent.lock(folder)
    except agent.AlreadyStarted as error:
        return _refuse(str(error), _ALREADY_STARTED)
    except (Refused, OSError) as error:
        return _refuse(str(error), _REFUSED)
    if options.detach:
        return _detached(folder, lock)
    agent.run(folder, lock)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="stoker_run", description=__doc__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    work = commands.add_parser("work", help="run the attempts of a queue")
    work.add_argument("folder", help="the folder of the worker")
    work.add_argument("--queue", default="", help="the folder of the queue (default: that of the worker)")
    work.add_argument("--idle", type=float, default=5.0, help="seconds to wait for another attempt")
    work.add_argument("--daemon", default="", help="name of the ancestor with which to end")
    work.add_argument("--host", default="", help="address of this node for others")
    work.add_argument("--peers", type=int, default=0, help="processes that others have to reach here")
    gang = commands.add_parser("gang", help="run an attempt on several nodes of a Ray cluster")
    gang.add_argument("folder", help="the folder of the workers")
    gang.add_argument("attempt", help="the folder of the attempt")
    gang.add_argument("--cores", type=float, default=1.0, help="cores of each node")
    gang.add_argument("--gpus", type=float, default=0.0, help="GPUs of each node")
    member = commands.add_parser("member", help="be one of the nodes of an attempt")
    member.add_argument("folder", help="the folder of the workers")
    member.add_argument("attempt", help="the folder of the attempt")
    member.add_argument("--node", type=int, required=True, help="number of this node, from 0")
    member.add_argument("--host", required=True, help="address of this node for the others")
    start = commands.add_parser("start", help="start the attempt of a folder, and follow it to its end")
    start.add_argument("attempt", help="the folder of the attempt")
    start.add_argument("--detach", action="store_true", help="go on in a session of its own")
    return parser


def _detached(folder: Path, lock: int) -> int:
    """Go on in a session of its own; returns when the processes exist, or could not be started."""
    listening, saying = os.pipe()
    if os.fork() > 0:
        os.close(saying)
        os.close(lock)
        word = os.read(listening, 1)
        if not word:
            return _refuse("the agent has ended at once; see {}".format(folder / "agent.log"), _REFUSED)
        return 0
    try:
        os.setsid()
        os.close(listening)
        _redirect(folder / "agent.log")
        # A child of the caller's would be a zombie until the caller ends.
        if os.fork() == 0:
            agent.run(folder, lock, lambda: _started(saying))
    except BaseException:  # noqa: BLE001  # what ends a child must not go on as the parent would
        import traceback

        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _started(saying: int) -> None:
    os.write(saying, b".")
    os.close(saying)


def _redirect(log: Path) -> None:
    """Take stdin from nowhere, write what is said to a file."""
    nowhere = os.open(os.devnull, os.O_RDONLY)
    file = os.open(str(log), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for source, target in ((nowhere, 0), (file, 1), (file, 2)):
        os.dup2(source, target)
    os.close(nowhere)
    os.close(file)


def _refuse(sentence: str, status: int) -> int:
    sys.stderr.write(f"stoker_run: {sentence}\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
