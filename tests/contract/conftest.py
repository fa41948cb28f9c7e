"""The server that the tests of the protocols share; it is started when the first of them asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.contract.protocol_models import DEPLOYMENT, write_models
from tests.live_server import LiveServer
from tests.tiny_models import BODY_SCRIPT, write_script


@pytest.fixture(scope="session")
def protocol_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """One frontend, with the models of `protocol_models` and an entry script that takes whole bodies."""
    scratch = tmp_path_factory.mktemp("protocols")
    deployment = scratch / "deployment"
    write_models(deployment / "models")
    write_script(deployment / "models" / "body", BODY_SCRIPT)
    (deployment / "deployment.yaml").write_text(DEPLOYMENT)
    with LiveServer(scratch, "--config", deployment / "deployment.yaml") as server:
        yield server
