"""A server of several models. Some cannot be loaded: the others serve, and mended ones can be loaded."""

from __future__ import annotations

import shutil
from pathlib import Path
from urllib.parse import quote

from tests.http.raw_http import request
from tests.live_server import PRIMARY, SECONDARY, LiveServer, run_stoker
from tests.patience import PROGRAM_S
from tests.process.conftest import Serve

ADMIN = "admin-key-of-the-tests-0003"
ODD = "my größe (2)"


def _load(server: LiveServer, name: str) -> int:
    with server.connect() as connection:
        connection.socket.settimeout(PROGRAM_S)
        headers = [("Authorization", f"Bearer {ADMIN}"), ("Content-Length", "0")]
        return connection.ask(request("POST", f"/v2/repository/models/{name}/load", headers)).status


def test_broken_models_do_not_stop_the_others(serve: Serve, doubler: Path, tmp_path: Path) -> None:
    """One fails in the process that it shares, one is not there: each says why, and serves once it is mended.

    Two models of a folder in Triton's layout cannot be served, one of them for its name. The log names the ignored
    settings of the other model, whose name must be quoted in paths.
    """
    bad, absent = tmp_path / "bad.onnx", tmp_path / "absent.onnx"
    bad.write_bytes(b"this is no model")
    file = tmp_path / "deployment.yaml"
    folder = tmp_path / "repository"
    for name in (ODD, "chain", "no:\x1b[2Jname"):
        (folder / name / "1").mkdir(parents=True)
    shutil.copyfile(doubler, folder / ODD / "1" / "model.onnx")
    (folder / ODD / "config.pbtxt").write_text("max_batch_size: 8 response_cache { enable: true }")
    (folder / "chain" / "config.pbtxt").write_text('platform: "ensemble" ensemble_scheduling { }')
    file.write_text("models:\n" + "".join(f"  - path: {path}\n" for path in (bad, folder, absent)))
    server = serve("--config", file, "--frontends", "1", "--device", "cpu", env={"STOKER_ADMIN_KEY": ADMIN})

    assert len(server.device_pids()) == 1
    assert server.ready
    score = "/api/v1/service/{}/score".format
    assert server.score([1, 2, 3, 4], path=score(quote(ODD))).json() == [[2, 4, 6, 8]]
    assert server.get(f"/v2/models/{quote(ODD)}/ready").status == 200
    assert f'model="{ODD}"' in server.get("/metrics").body.decode()
    output = server.output()
    assert f"scoring  http://127.0.0.1:{server.port}{score(quote(ODD))}\n" in output, (
        "others may come: it is named"
    )
    assert (
        r"broken   no:\x1b[2Jname version 1 is not served: 'no:\x1b[2Jname' cannot be a model name: "
        in output
    )
    assert f"broken   absent version 1 is not served: {absent} does not exist" in output
    assert "broken   bad version 1 is not served: " in output
    assert "broken   chain version 1 is not served: config.pbtxt of chain: ensemble_scheduling" in output
    assert (
        f"config.pbtxt of {ODD}: response_cache is passed over: answers are kept with the setting cache_mb"
        in output
    )
    for name, reason in (("bad", "bad.onnx"), ("absent", "does not exist")):
        for answer in (server.get(f"/v2/models/{name}/ready"), server.score([1, 2, 3, 4], path=score(name))):
            assert (answer.status, reason in answer.body.decode()) == (503, True)
        status = server.get(f"/v1/models/{name}").json()["model_version_status"][0]
        assert (status["state"], reason in status["status"]["error_message"]) == ("END", True)
        assert _load(server, name) == 500, "it is as it was"
        shutil.copyfile(doubler, file.with_name(f"{name}.onnx"))
        assert _load(server, name) == 200
        assert server.score([1, 2, 3, 4], path=score(name)).json() == [[2, 4, 6, 8]]


def test_a_server_that_needs_all_models_ends_with_the_first_broken_one(doubler: Path, tmp_path: Path) -> None:
    """Asked for by `--exit-on-error`; without it a server of which no model can be loaded ends as well."""
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(b"this is no model")
    file = tmp_path / "deployment.yaml"
    keys = {"STOKER_PRIMARY_KEY": PRIMARY, "STOKER_SECONDARY_KEY": SECONDARY}
    for other, options in ((doubler, ["--exit-on-error"]), (tmp_path / "absent.onnx", [])):
        file.write_text(f"models:\n  - path: {bad}\n  - path: {other}\n")
        done = run_stoker("serve", "--config", file, "--port", "0", "--frontends", "1", *options, env=keys)
        assert done.returncode == 3, done.stdout + done.stderr
        assert "bad.onnx" in done.stderr
        assert "Traceback" not in done.stderr
