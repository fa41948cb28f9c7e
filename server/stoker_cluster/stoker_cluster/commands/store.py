"""`stoker store`: models as files that are named by their content, for pods that fetch them before they start."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from pathlib import Path
from typing import Final

from stoker.commands.terminal import sentence

_GB: Final = 1_000_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    actions = parser.add_subparsers(dest="store_action", required=True, metavar="ACTION")
    text = "serve a store from a folder"
    serve = actions.add_parser("serve", help=text, description=sentence(text))
    serve.add_argument("root", type=Path, metavar="DIR", help="the folder; it is made if it is not there")
    serve.add_argument(
        "--host", default="127.0.0.1", metavar="ADDRESS", help="address to listen on (default 127.0.0.1)"
    )
    serve.add_argument("--port", type=int, default=8090, metavar="N", help="port to listen on (default 8090)")
    serve.add_argument(
        "--max-gb", type=float, default=100.0, metavar="GB", help="most that all files take (default 100)"
    )
    serve.set_defaults(store_run=_serve)
    text = "bring files to a store, and print the address that pods fetch them by"
    push = actions.add_parser(
        "push", help=text, description=f"{sentence(text)} What is there is not sent again."
    )
    push.add_argument(
        "path", nargs="+", metavar="PATH", help="files and folders, relative to the current folder"
    )
    push.add_argument(
        "--to", required=True, metavar="URL", help="the store, for instance http://127.0.0.1:8090"
    )
    push.add_argument(
        "--as", dest="known_as", metavar="URL", help="what pods call the store, where that differs"
    )
    push.set_defaults(store_run=_push)
    text = "get what was pushed into a folder, every file verified"
    fetch = actions.add_parser("fetch", help=text, description=sentence(text))
    fetch.add_argument(
        "address",
        metavar="ADDRESS",
        help="what push has printed, http://STORE/sha256:DIGEST, or a file with that",
    )
    fetch.add_argument("folder", type=Path, metavar="DIR", help="the folder; it is made if it is not there")
    fetch.set_defaults(store_run=_fetch)
    text = "fetch whatever tree a file names, each time that it names another one"
    follow = actions.add_parser("follow", help=text, description=f"{sentence(text)} What was there stays.")
    follow.add_argument("file", type=Path, metavar="FILE", help="a file with an address, as push prints it")
    follow.add_argument("folder", type=Path, metavar="DIR", help="the folder; it is made if it is not there")
    follow.set_defaults(store_run=_follow)


def run(args: argparse.Namespace) -> int:
    """Run the chosen subcommand.

    Raises:
        OperatorError: The store refuses, does not answer, or has something else than it says.
    """
    exit_code: int = args.store_run(args)
    return exit_code


def _serve(args: argparse.Namespace) -> int:
    import uvicorn

    from stoker_cluster.store import store_app

    app = store_app(args.root, int(args.max_gb * _GB))
    uvicorn.run(app, host=args.host, port=args.port, log_level="warning")
    return 0


def _push(args: argparse.Namespace) -> int:
    from stoker_cluster.store_client import push

    address = push(args.path, Path.cwd(), args.to, _say)
    if args.known_as is not None:
        address = f"{args.known_as.rstrip('/')}/{address.rpartition('/')[2]}"
    sys.stdout.write(f"{address}\n")
    return 0


def _fetch(args: argparse.Namespace) -> int:
    from stoker_cluster.store_client import fetch

    named = args.address if "://" in args.address else Path(args.address).read_text(encoding="utf-8").strip()
    fetch(named, args.folder, _say)
    return 0


def _follow(args: argparse.Namespace) -> int:
    from stoker_cluster.store_client import follow

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    follow(args.file, args.folder, _say, stop)
    return 0


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
