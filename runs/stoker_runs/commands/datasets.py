"""`stoker datasets`: names and versions for data in stores and at addresses."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Any

from stoker.commands.terminal import note, print_json, table
from stoker.errors import InvalidSettings
from stoker.settings.names import did_you_mean, read_address
from stoker.system.logs import escaped
from stoker_runs.commands.run_output import add_actions, found_workspace, run_action


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    add = add_actions(parser)
    one = argparse.ArgumentParser(add_help=False)
    one.add_argument("name", metavar="NAME", help="the data set's name")
    register = add("register", _register, "give data a name and a version", one)
    register.add_argument(
        "places", nargs="+", metavar="PLACE", help="STORE/PATH with * and ** for patterns, or an address"
    )
    register.add_argument("--description", default="", metavar="TEXT", help="what it is")
    register.add_argument("--new-version", action="store_true", help="a new version if it has other places")
    add("list", _list, "list the data sets", json=True)
    add("show", _show, "show the versions of a data set", one, json=True)


run = run_action


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
