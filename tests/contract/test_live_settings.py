"""Triton's trace and logging extensions over HTTP: the settings, their keys, and the questions to the supervisor."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from tests.contract.in_process import InProcessServer, script
from tests.http.raw_http import Answer, bearer
from tests.puppet_supervisor import Entries, PuppetSupervisor, with_admin_key

from stoker.control.frontend_messages import Ask, AskLogs, AskTraces

KEY = "the-admin-key-of-the-tests"
TRACED = {"on": True, "rate": 100, "left": -1}
LOGGED = {"info": True, "warning": False, "error": True, "verbose_level": 1, "form": "text"}
TOLD_TRACES = {
    "trace_level": ["TIMESTAMPS"],
    "trace_rate": "100",
    "trace_count": "-1",
    "trace_mode": "opentelemetry",
}
TOLD_LOGS = {
    "log_file": "",
    "log_info": True,
    "log_warning": False,
    "log_error": True,
    "log_verbose_level": 1,
    "log_format": "ISO8601",
}


def reply(ask: Ask) -> Entries:
    """The requested settings."""
    return (TRACED if isinstance(ask, AskTraces) else LOGGED,)


class Scene:
    """A server of one script, and the questions to its supervisor."""

    def __init__(self, server: InProcessServer) -> None:
        self.server = server
        self.questions = PuppetSupervisor(server.gateway, with_admin_key(KEY), reply).requests

    def post(self, path: str, content: Mapping[str, Any], key: str = KEY) -> Answer:
        return self.server.ask("POST", f"/v2{path}", (bearer(key),), json.dumps(content).encode())

    def get(self, path: str) -> Answer:
        return self.server.ask("GET", f"/v2{path}")


@pytest.fixture(scope="module")
def running() -> Iterator[InProcessServer]:
    with InProcessServer(script(lambda raw_data: raw_data)) as server:
        yield server


@pytest.fixture
def scene(running: InProcessServer) -> Scene:
    return Scene(running)


def test_settings_are_shown_in_tritons_words(scene: Scene) -> None:
    """Numbers of traces as texts, levels as a list; a text log has times by ISO 8601. Both extensions are listed."""
    assert scene.get("/trace/setting").json() == TOLD_TRACES
    assert scene.get("/models/model/trace/setting").json() == TOLD_TRACES
    assert scene.get("/logging").json() == TOLD_LOGS
    assert scene.questions == [AskTraces(0), AskTraces(1, "model"), AskLogs(2)]
    assert {"trace", "logging"} <= set(scene.get("").json()["extensions"])
    assert scene.get("/models/none/trace/setting").status == 404


@pytest.mark.parametrize(
    ("content", "changes"),
    [
        ({"trace_level": ["OFF"]}, {"on": False}),
        ({"trace_level": "TIMESTAMPS", "trace_mode": "opentelemetry"}, {"on": True}),
        ({"trace_rate": "1000", "trace_count": 5}, {"rate": 1000, "left": 5}),
        (
            {"trace_level": None, "trace_rate": None, "trace_count": "-1"},
            {"on": None, "rate": None, "left": -1},
        ),
    ],
)
def test_trace_settings_are_requested_from_the_supervisor(
    scene: Scene, content: dict[str, Any], changes: dict[str, Any]
) -> None:
    """Settings of one model or all are changed; null takes a setting back."""
    for model, path in (("model", "/models/model/trace/setting"), ("", "/trace/setting")):
        assert scene.post(path, content).json() == TOLD_TRACES
        question = scene.questions[-1]
        assert isinstance(question, AskTraces)
        assert (question.model, question.changes) == (model, changes)


@pytest.mark.parametrize(
    ("content", "changes"),
    [
        ({"log_info": False, "log_warning": True, "log_error": None}, {"info": False, "warning": True}),
        ({"log_verbose_level": 2, "log_format": "default"}, {"verbose_level": 2, "form": None}),
        ({"log_format": "ISO8601"}, {"form": "text"}),
        ({"log_format": "json", "log_file": None}, {"form": "json"}),
    ],
)
def test_log_settings_are_requested_from_the_supervisor(
    scene: Scene, content: dict[str, Any], changes: dict[str, Any]
) -> None:
    """Settings that are null stay unchanged."""
    assert scene.post("/logging", content).json() == TOLD_LOGS
    (question,) = scene.questions
    assert isinstance(question, AskLogs)
    assert question.changes == changes


@pytest.mark.parametrize(
    ("path", "content", "status", "message"),
    [
        (
            "/trace/setting",
            {"trace_file": "/tmp/x"},
            501,
            "trace_file cannot be set: traces are sent by OTLP",
        ),
        ("/trace/setting", {"log_frequency": "5"}, 501, "log_frequency cannot be set"),
        ("/trace/setting", {"trace_mode": "triton"}, 501, "trace_mode is opentelemetry"),
        ("/trace/setting", {"trace_level": ["TIMESTAMPS", "TENSORS"]}, 501, "TENSORS is not supported"),
        ("/trace/setting", {"trace_level": ["OFF", "TIMESTAMPS"]}, 400, "has to be OFF or TIMESTAMPS"),
        ("/trace/setting", {"trace_level": [["OFF"]]}, 400, "has to be OFF or TIMESTAMPS"),
        ("/trace/setting", {"trace_rate": "often"}, 400, "trace_rate has to be an integer from 0"),
        ("/trace/setting", {"trace_rate": True}, 400, "trace_rate has to be an integer"),
        ("/trace/setting", {"trace_count": "-2"}, 400, "trace_count has to be an integer from -1"),
        ("/trace/setting", {"trace_rate": "9" * 5000}, 400, "trace_rate has to be"),
        ("/trace/setting", {"colour": "red"}, 400, "'colour' is not known"),
        ("/logging", {"log_file": "x"}, 501, "log_file cannot be set: the log is standard error"),
        ("/logging", {"log_info": "yes"}, 400, "log_info has to be a boolean"),
        ("/logging", {"log_verbose_level": -1}, 400, "log_verbose_level has to be an integer from 0"),
        ("/logging", {"log_format": "xml"}, 400, "log_format has to be one of default, ISO8601"),
        ("/logging", {"log_format": ["json"]}, 400, "log_format has to be one of"),
        ("/logging", {"colour": "red"}, 400, "'colour' is not known"),
    ],
)
def test_impossible_setting_is_refused(
    scene: Scene, path: str, content: dict[str, Any], status: int, message: str
) -> None:
    """The error says why, and the supervisor gets no request."""
    answer = scene.post(path, content)
    assert answer.status == status
    assert message in answer.json()["error"]
    assert scene.questions == []


@pytest.mark.parametrize("path", ["/trace/setting", "/models/model/trace/setting", "/logging"])
def test_changing_takes_the_admin_key(scene: Scene, path: str) -> None:
    """The refusal of another key names it; methods that neither read nor change are unknown."""
    content = {"log_info": True} if path == "/logging" else {"trace_rate": "1"}
    answer = scene.post(path, content, "another-key-of-the-tests-0001")
    assert answer.status == 401
    assert "needs the admin key" in answer.json()["error"]
    assert scene.questions == []
    assert scene.server.ask("PUT", f"/v2{path}").status == 405
