"""`stoker kubernetes`."""

from pathlib import Path

import pytest
import yaml

from stoker import cli


def test_secret_missing_from_rendered_yaml_is_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """Standard output is YAML alone; the command that creates the Secret is on standard error."""
    assert cli.main(["kubernetes", "render", "digits.onnx", "--image", "stoker:1", "--namespace", "ml"]) == 0
    printed = capsys.readouterr()
    assert all(content["metadata"]["namespace"] == "ml" for content in yaml.safe_load_all(printed.out))
    assert "kubectl create secret generic digits-keys --namespace ml --from-literal=primary=" in printed.err
    assert "signing" not in printed.err


def test_a_plan_that_cannot_be_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence on standard error, and exit code 2."""
    assert (
        cli.main(
            ["kubernetes", "render", "digits.onnx", "--image", "a", "--gpus", "1", "--max-unavailable", "0"]
        )
        == 2
    )
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == (
        "stoker kubernetes: max_unavailable 0 needs a GPU to spare for each rollout; say so with --spare-gpus\n"
    )


@pytest.mark.parametrize("action", ["render", "kserve", "dockerfile"])
def test_help(action: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The help of each action lists its options."""
    with pytest.raises(SystemExit):
        cli.main(["kubernetes", action, "--help"])
    printed = capsys.readouterr().out
    assert "--image" in printed or "--from" in printed


def test_kserve_runtimes_for_scripts_and_grpc_differ(capsys: pytest.CaptureFixture[str]) -> None:
    """Scripts have their own format and the model's folder; gRPC has its port alone."""

    def runtime(*options: str) -> tuple[dict, dict]:
        assert cli.main(["kubernetes", "kserve", "--image", "stoker:1", *options]) == 0
        content = yaml.safe_load(capsys.readouterr().out)
        return content, content["spec"]["containers"][0]

    content, container = runtime("--scripts")
    assert content["metadata"]["name"] == "stoker-azureml"
    assert container["args"][:1] == ["/mnt/models/score.py"]
    assert "--model-dir=/mnt/models" in container["args"]
    assert content["spec"]["supportedModelFormats"] == [{"name": "azureml", "version": "1"}]
    content, container = runtime("--grpc")
    assert container["ports"] == [{"name": "h2c", "containerPort": 9000, "protocol": "TCP"}]
    assert (content["spec"]["protocolVersions"], "--grpc-port=9000" in container["args"]) == (
        ["grpc-v2"],
        True,
    )


def test_the_dockerfile_has_the_packages_beside_a_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The environment file that lies beside it is installed, unless another one is named."""
    (tmp_path / "digits").mkdir()
    (tmp_path / "digits" / "score.py").touch()
    (tmp_path / "digits" / "requirements.txt").write_text("scipy==1.14\n")
    (tmp_path / "other.txt").write_text("rapidfuzz\n")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["kubernetes", "dockerfile", "digits/score.py", "--from", "stoker:1"]) == 0
    assert capsys.readouterr().out == (
        "FROM stoker:1\nUSER root\nRUN pip install --no-cache-dir scipy==1.14\nUSER 10001\n"
        'COPY ["digits", "/models/digits"]\n'
    )
    assert cli.main(["kubernetes", "dockerfile", "digits/score.py", "--environment", "other.txt"]) == 0
    assert "RUN pip install --no-cache-dir rapidfuzz\n" in capsys.readouterr().out
