"""`stoker datasets`: names and versions for data in stores and at addresses."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Any

from stoker.commands.terminal import add_json_argument, print_json, table
from stoker.errors import InvalidSettings
from stoker.settings.names import did_you_mean, read_address
from stoker.system.logs import escaped
from stoker_runs.commands.run_output import common_arguments, found_workspace, note


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    common = common_arguments()
    actions = parser.add_subparsers(dest="datasets_action", required=True, metavar="ACTION")
    register = actions.add_parser("register", parents=[common], help="give data a name and a version")
    register.add_argument("name", metavar="NAME", help="the data set's name")
    register.add_argument(
        "places", nargs="+", metavar="PLACE", help="STORE/PATH with * and ** for patterns, or an address"
    )
    register.add_argument("--description", default="", metavar="TEXT", help="what it is")
    register.add_argument("--new-version", action="store_true", help="a new version if it has other places")
    register.set_defaults(datasets_run=_register)
    listing = actions.add_parser("list", parents=[common], help="list the data sets")
    add_json_argument(listing)
    listing.set_defaults(datasets_run=_list)
    show = actions.add_parser("show", parents=[common], help="show the versions of a data set")
    show.add_argument("name", metavar="NAME", help="the data set's name")
    add_json_argument(show)
    show.set_defaults(datasets_run=_show)


def run(args: argparse.Namespace) -> int:
    """Run the chosen subcommand.

    Raises:
        OperatorError: There is no such data set or store.
    """
    exit_code: int = args.datasets_run(args)
    return exit_code


def _register(args: argparse.Namespace) -> int:
    from stoker_runs.launch.inputs import register_data_set
    from stoker_runs.launch.stores import checked_store

    workspace = found_workspace(args)
    places: list[tuple[str | None, str]] = []
    for place in args.places:
        if read_address(place):
            places.append((None, place))
            continue
        store, _, path = place.partition("/")
        places.append((checked_store(workspace, store), path))
    version = register_data_set(
        workspace, args.name, places, args.description, create_new_version=args.new_version
    )
    sys.stdout.write(f"{args.name}:{version}\n")
    return 0


def _list(args: argparse.Namespace) -> int:
    from stoker_runs.launch.inputs import data_set_names, data_set_versions

    workspace = found_workspace(args)
    found = {name: data_set_versions(workspace, name) for name in data_set_names(workspace)}
    if args.json:
        print_json([{"name": name, "version": len(versions)} for name, versions in found.items()])
    elif found:
        rows = [(name, str(len(versions)), _places(versions[-1])) for name, versions in found.items()]
        sys.stdout.write(table([("DATA SET", "VERSION", "PLACES"), *rows]))
    else:
        note("there is no data set; stoker datasets register NAME STORE/PATH makes one")
    return 0


def _show(args: argparse.Namespace) -> int:
    from stoker_runs.launch.inputs import data_set_names, data_set_versions

    workspace = found_workspace(args)
    names = data_set_names(workspace)
    if args.name not in names:
        hint = did_you_mean(args.name, names, "stoker datasets list shows what there is")
        raise InvalidSettings(f"there is no data set {args.name!r}; {hint}")
    versions = data_set_versions(workspace, args.name)
    if args.json:
        print_json(
            [
                {"version": number, **one, "places": _shown_places(one)}
                for number, one in enumerate(versions, 1)
            ]
        )
        return 0
    rows = [
        (str(number), _places(one), escaped(str(one.get("description", ""))))
        for number, one in enumerate(versions, 1)
    ]
    sys.stdout.write(table([("VERSION", "PLACES", "DESCRIPTION"), *rows]))
    return 0


def _shown_places(version: Mapping[str, Any]) -> list[list[str | None]]:
    """The places of a version, without passwords and queries of addresses."""
    from stoker.models.remote_stores import shown_address

    return [[store, shown_address(path) if store is None else path] for store, path in version["places"]]


def _places(version: Mapping[str, Any]) -> str:
    shown = [
        str(path) if store is None else f"{store}/{str(path).strip('/')}"
        for store, path in _shown_places(version)
    ]
    return escaped(", ".join(shown))
