"""`stoker stores`: data stores of the workspace, and the files in them."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from stoker.commands.terminal import print_json, table
from stoker.errors import InvalidSettings
from stoker.models.remote_stores import shown_address
from stoker.system.wording import format_count
from stoker_base.trees import files_below
from stoker_runs.commands.run_output import add_actions, found_workspace, run_action


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    declare = add_actions(parser)
    one, overwrite = argparse.ArgumentParser(add_help=False), argparse.ArgumentParser(add_help=False)
    one.add_argument("name", metavar="NAME", help="the store's name")
    overwrite.add_argument("--overwrite", action="store_true", help="replace files that are there")
    declare("list", _list, "list the data stores", json=True)
    add = declare("add", _add, "add a folder or an address as a data store", one)
    add.add_argument("where", metavar="WHERE", help="a folder, or an address such as s3://bucket/folder")
    add.add_argument(
        "--options",
        metavar="FILE",
        help="a JSON object of credentials and endpoints as fsspec's file system takes them, - for standard input; "
        "kept for its owner alone (default: the credentials that the store's own programs use)",
    )
    upload = declare("upload", _upload, "copy a file or folder into a data store", one, overwrite)
    upload.add_argument("source", type=Path, metavar="PATH", help="the file or folder")
    upload.add_argument("--to", default="", metavar="FOLDER", help="folder of the store (default: its root)")
    text = "copy files of a data store to a folder"
    download = declare("download", _download, text, one, overwrite)
    download.add_argument(
        "path", nargs="?", default="", metavar="PATH", help="a file or folder (default: all)"
    )
    download.add_argument(
        "--output",
        "-o",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="the folder (default: the current one)",
    )
    declare("set-default", _set_default, "make a data store the default", one)


run = run_action


def _list(args: argparse.Namespace) -> int:
    from stoker_runs.launch.stores import default_store, remote_store, store_names, store_root

    workspace = found_workspace(args)
    default, found = default_store(workspace), []
    for name in store_names(workspace):
        remote = remote_store(workspace, name)
        where = str(store_root(workspace, name)) if remote is None else shown_address(remote.address)
        found.append({"name": name, "where": where, "default": name == default})
    if args.json:
        print_json(found)
        return 0
    rows = [(str(one["name"]), str(one["where"]), "default" if one["default"] else "") for one in found]
    sys.stdout.write(table([("STORE", "WHERE", ""), *rows]))
    return 0


def _add(args: argparse.Namespace) -> int:
    from stoker_runs.launch.stores import register_store

    register_store(found_workspace(args), args.name, args.where, _options(args.options))
    sys.stdout.write(f"{args.name} is added; stoker submit --input NAME={args.name}/PATH\n")
    return 0


def _options(file: str | None) -> dict[str, Any]:
    if file is None:
        return {}
    with suppress(ValueError):
        found = json.loads(sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return found
    raise InvalidSettings(f'--options {file}: expected a JSON object, such as {{"account_name": "…"}}')


def _upload(args: argparse.Namespace) -> int:
    from tqdm import tqdm

    from stoker_runs.launch.stores import checked_store, upload_files

    source: Path = args.source
    if not source.exists():
        raise InvalidSettings(f"there is no file or folder {source}")
    files = [source] if source.is_file() else sorted(file for file in files_below(source) if file.is_file())
    named = [(file, file.name if file == source else file.relative_to(source).as_posix()) for file in files]
    workspace = found_workspace(args)
    checked_store(workspace, args.name)
    with tqdm(total=len(named), unit="file", disable=None, leave=False) as bar:
        sent = 0
        for _, _, is_new in upload_files(workspace, args.name, named, args.to, overwrite=args.overwrite):
            sent += is_new
            bar.update()
    sys.stdout.write(_summary(sent, len(named), "uploaded"))
    return 0


def _download(args: argparse.Namespace) -> int:
    from tqdm import tqdm

    from stoker_runs.launch.stores import checked_store, download_files, place_in_store

    workspace = found_workspace(args)
    place = place_in_store(workspace, checked_store(workspace, args.name), args.path, tqdm.write)
    if place is None:
        raise InvalidSettings(f"{args.path} leads out of the data store {args.name}")
    copies = [is_new for _, is_new in download_files(place, args.output, overwrite=args.overwrite)]
    sys.stdout.write(_summary(sum(copies), len(copies), "downloaded"))
    return 0


def _summary(done: int, count: int, verb: str) -> str:
    there = f", {count - done} were there (--overwrite replaces them)" if done < count else ""
    return f"{verb} {format_count(done, 'file')}{there}\n"


def _set_default(args: argparse.Namespace) -> int:
    from stoker_runs.launch.stores import set_default_store

    set_default_store(found_workspace(args), args.name)
    sys.stdout.write(f"{args.name} is the default store\n")
    return 0
