"""The message with which a frontend starts."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from tests.unit.supervisor.replicas.stage import model

from stoker.control.frontend_messages import StartFrontend
from stoker.settings.server import ServerSettings
from stoker.supervisor.catalogue import Catalogue
from stoker.supervisor.frontend_starts import FrontendStarts


def message(tmp_path: Path, **settings: Any) -> StartFrontend:
    """The message to the second of two frontends that serve one model."""
    served = model("digits", "cpu")
    given = ServerSettings(**settings)
    starts = FrontendStarts(given, Catalogue([served], {}, {}), tmp_path / "keys", None)
    with socket.socket() as first, socket.socket() as second:
        for sock in (first, second):
            sock.bind(("127.0.0.1", 0))
        return starts.message(1, [[first], [second]], [served])


def test_message_has_the_models_and_how_many_frontends_share_them(tmp_path: Path) -> None:
    """Each frontend divides what is limited for the whole server."""
    start = message(tmp_path)
    assert start.page == 1
    assert [one.name for one in start.services] == ["digits"]
    assert start.server.frontends == 2


@pytest.mark.parametrize(("later_mb", "keeps"), [(0, False), (8, True)])
def test_requests_are_kept_for_later_if_the_operator_gives_room(
    tmp_path: Path, later_mb: float, *, keeps: bool
) -> None:
    """They lie in the workspace, beside the keys."""
    later = message(tmp_path, later_mb=later_mb).later
    assert (later is not None) is keeps
    assert later is None or later.folder.parent == tmp_path


def test_administration_is_local_where_all_sockets_are(tmp_path: Path) -> None:
    """Without keys, only callers of this machine may change what is served."""
    assert message(tmp_path).admin.local
