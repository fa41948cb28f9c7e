"""The keys of services: given by the operator, read from a folder, or made."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from stoker.errors import InvalidSettings
from stoker.keys.keyring import Keyring
from stoker.settings.server import ServerSettings
from stoker.settings.workspace import Workspace
from stoker.supervisor.service_keys import ServiceKeys

KEY = "0123456789abcdef"


def test_keys_from_a_folder_and_a_variable_are_refused(tmp_path: Path) -> None:
    """A folder and a variable would each say who is let in."""
    settings = ServerSettings(keys_dir=tmp_path, primary_key=KEY)
    with pytest.raises(
        InvalidSettings, match=r"keys come from STOKER_PRIMARY_KEY and from keys_dir .*; leave"
    ):
        ServiceKeys(settings, Workspace(tmp_path))
    assert ServiceKeys(dataclasses.replace(settings, auth=False), Workspace(tmp_path))


def test_keys_of_the_operator_are_shown_and_none_are_made(tmp_path: Path) -> None:
    """Each service has the given key; the workspace stays empty."""
    keys = ServiceKeys(ServerSettings(primary_key=KEY), Workspace(tmp_path))
    keys.provide("digits")
    assert keys.find_primary(["digits"]) == {"digits": KEY}
    assert not list(tmp_path.iterdir())


def test_keys_that_nobody_gives_are_made_once(tmp_path: Path) -> None:
    """A second start shows the keys of the first."""
    workspace = Workspace(tmp_path)
    shown = []
    for _ in range(2):
        keys = ServiceKeys(ServerSettings(), workspace)
        keys.provide("digits")
        shown.append(keys.find_primary(["digits"]))
    assert shown == [{"digits": Keyring(workspace.keys_dir, "digits").show().primary}] * 2
    assert keys.generation == 0
