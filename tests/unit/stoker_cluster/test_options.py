"""Options and files as plans, and the Dockerfile of a plan's image."""

from pathlib import Path
from typing import Any

import pytest

from stoker.errors import InvalidSettings
from stoker_cluster.objects.configuration import pod_file
from stoker_cluster.options import listed_models, plan_from
from stoker_cluster.render import dockerfile


def planned(tmp_path: Path, text: str, *paths: str, **arguments: Any) -> Any:
    file = tmp_path / "deployment.yaml"
    file.write_text(text)
    return plan_from({"image": "stoker:1", **arguments}, paths, file, None)


def test_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    """Fields below `kubernetes`, settings of the server beside them, and options above both."""
    text = "timeout_ms: 5\nmodels: [{path: a.onnx}]\nkubernetes: {replicas: 2, namespace: models, name: b}\n"
    plan = planned(tmp_path, text, replicas="3")
    assert (plan.name, plan.replicas, plan.namespace, plan.server) == ("b", 3, "models", {"timeout_ms": 5})
    assert plan.serves == ({"name": "b", "path": "/models/a.onnx"},)
    assert planned(tmp_path, text, "c.onnx").serves == ({"name": "b", "path": "/models/c.onnx"},)


@pytest.mark.parametrize(
    ("path", "name", "inside"),
    [
        ("digits.onnx", "digits", "/models/digits.onnx"),
        ("clothes/score.py", "clothes", "/models/clothes/score.py"),
        ("clothes", "clothes", "/models/clothes"),
        ("clothes/3", "clothes", "/models/clothes/3"),
        ("net/3/saved_model.pb", "net", "/models/net/3/saved_model.pb"),
        ("score.py", "here", "/models/score.py"),
        ("model.onnx", "here", "/models/model.onnx"),
        ("/models/Churn", "churn", "/models/Churn"),
    ],
)
def test_a_model_gives_its_name_and_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, name: str, inside: str
) -> None:
    """The only model names the service, as `stoker serve` calls it here, and is below /models in the pod."""
    here = tmp_path / "here"
    (here / "clothes" / "3").mkdir(parents=True)
    (here / "clothes" / "score.py").touch()
    monkeypatch.chdir(here)
    plan = plan_from({"image": "stoker:1"}, [path], None, None)
    assert (plan.name, plan.serves[0]["path"]) == (name, inside)


def test_file_name_unfit_for_a_service_needs_a_name_option() -> None:
    """With the option, the file's name does not matter."""
    with pytest.raises(InvalidSettings, match="b_2 cannot be the name of a service in a cluster; choose one"):
        plan_from({"image": "stoker:1"}, ["B_2"], None, None)
    assert plan_from({"image": "stoker:1", "name": "b"}, ["B_2"], None, None).serves[0]["name"] == "b"


def test_several_models_have_names_of_their_own(tmp_path: Path) -> None:
    """The service has the given name, its models have theirs or those of their files."""
    text = "models: [{path: a.onnx}, {path: b/score.py, name: c, model_dir: b/model}]\nkubernetes: {name: pair}\n"
    plan = planned(tmp_path, text)
    assert plan.services == ("a", "c")
    assert plan.serves[1]["model_dir"] == "/models/b/model"
    with pytest.raises(InvalidSettings, match="the service has no name"):
        plan_from({"image": "stoker:1"}, ["a.onnx", "b.onnx"], None, None)


def test_a_model_of_the_image_that_is_not_here_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistyped path gives a note, with `check_models` an error; files of a claim are not checked."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.onnx").touch()
    plan = plan_from({"image": "stoker:1", "name": "both"}, ["there.onnx", "mistyped.onnx"], None, None)
    assert [note.partition(" is not in ")[0] for note in plan.notes] == ["mistyped.onnx"]
    with pytest.raises(InvalidSettings, match=r"^mistyped\.onnx is not in "):
        plan_from({"image": "stoker:1", "check_models": True}, ["mistyped.onnx"], None, None)
    claimed = {"image": "stoker:1", "models": "pvc://claim/path", "check_models": True}
    assert plan_from(claimed, ["mistyped.onnx"], None, None).notes == ()
    file = tmp_path / "elsewhere" / "deployment.yaml"
    file.parent.mkdir()
    file.write_text("models: [{path: there.onnx}]")
    assert "there.onnx is not in" in plan_from({"image": "stoker:1"}, [], file, None).notes[0]


def test_a_model_at_an_address_is_fetched_by_the_pods(tmp_path: Path) -> None:
    """As it is written, by pods that may connect to it; nothing of it is copied into an image."""
    address = "s3://bucket/digits/model.onnx"
    with pytest.raises(
        InvalidSettings, match=r"the pods fetch s3://bucket/digits/model.onnx.*--allow-egress"
    ):
        planned(tmp_path, "", address)
    for allowed in ({"allow_egress": "true"}, {"network_policy": "false"}):
        plan = planned(tmp_path, "", address, **allowed)
        assert (plan.serves, plan.notes) == (({"name": "digits", "path": address},), ())
    assert dockerfile("stoker:1", [{"path": address}]) == "FROM stoker:1\n"


def test_pipelines_are_the_pods_as_they_are_written(tmp_path: Path) -> None:
    """They have no files, and callers reach them by name; an invalid one is refused before the pod is made."""
    text = "models: [{path: a.onnx}]\nkubernetes: {name: a}\npipelines: {p: {steps: [%s]}}\n"
    plan = planned(tmp_path, text % "{model: a}")
    assert pod_file(plan)["pipelines"] == {"p": {"steps": [{"model": "a"}]}}
    assert plan.services == ("a", "p")
    with pytest.raises(InvalidSettings, match="must have a model"):
        planned(tmp_path, text % "{}")


def test_settings_that_a_pod_replaces_are_noted(tmp_path: Path) -> None:
    """A pod has its own address and port, and its packages are in the image."""
    plan = planned(
        tmp_path,
        "port: 9000\nmodels: [{path: a/score.py, environment: a/conda.yml, environment_managed: system}]\n",
    )
    assert plan.server == {}
    assert "port of" in plan.notes[0]
    assert plan.serves[0] == {"name": "a", "path": "/models/a/score.py", "environment": "/models/a/conda.yml"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "models: [{registered: mnist}]",
            "needs a path: the workspace with registered models is on this machine",
        ),
        ("models: [{path: a/score.py, uses: mnist}]", "lay them into a folder, as model_dir"),
        ("models: [{path: ../a.onnx}]", "cannot be in the pod, whose models are below /models"),
        ("models: [{path: /tmp/a.onnx}]", "cannot be in the pod"),
        ("models: [{path: a.onnx, batch: 3}]", "there is no setting 'batch'"),
        ("models: a.onnx", "models must be a list"),
        ("tls_cert: a.pem\nmodels: [{path: a.onnx}]", "let a gateway speak TLS"),
        ("tls_client_ca: a.pem\nmodels: [{path: a.onnx}]", "tls_client_ca names a file that the pod has not"),
        ("grpc_tls_cert: a.pem\nmodels: [{path: a.onnx}]", "names a file that the pod has not"),
        ("kubernetes: {replica: 3}\nmodels: [{path: a.onnx}]", "did you mean replicas"),
        ("kubernetes: [a]\nmodels: [{path: a.onnx}]", "kubernetes must hold settings by name"),
        ("timeout: 3\nmodels: [{path: a.onnx}]", "there is no setting 'timeout'"),
        ("port: 8080", "nothing is served"),
    ],
)
def test_files_that_cannot_be_a_plan_are_refused(tmp_path: Path, text: str, message: str) -> None:
    """The message names the file or the value, and says what to do."""
    with pytest.raises(InvalidSettings) as refused:
        planned(tmp_path, text, name="a")
    assert message in str(refused.value)


def test_dockerfile_copies_files_and_packages_of_its_models() -> None:
    """The files are an ONNX file and its weights, a script's folder, and files that settings name."""
    models: list[dict[str, Any]] = [
        {"path": "digits.onnx"},
        {"path": "clothes/score.py", "model_dir": "clothes/model", "sample_input": "samples/clothes.json"},
        {"path": "churn"},
    ]
    assert dockerfile(
        "stoker:1", models, ["--extra-index-url https://example.com/a b", "scipy==1.14", "a>=2; b"]
    ) == (
        "FROM stoker:1\n"
        "USER root\n"
        "RUN pip install --no-cache-dir --extra-index-url 'https://example.com/a b' scipy==1.14 'a>=2; b'\n"
        "USER 10001\n"
        'COPY ["digits.onnx*", "/models/"]\n'
        'COPY ["clothes", "/models/clothes"]\n'
        'COPY ["clothes/model", "/models/clothes/model"]\n'
        'COPY ["samples/clothes.json", "/models/samples/clothes.json"]\n'
        'COPY ["churn", "/models/churn"]\n'
    )


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("score.py", "would take all of the current folder"),
        ("../a", "is outside of the folder"),
        ("/a", "is outside"),
    ],
)
def test_an_image_takes_nothing_else_along(path: str, message: str) -> None:
    """A script at the top would bring the workspace with its keys; nothing is copied from outside."""
    with pytest.raises(InvalidSettings, match=message):
        dockerfile("stoker", [{"path": path}])


def test_nothing_to_put_into_an_image() -> None:
    """An image without models is refused."""
    with pytest.raises(InvalidSettings, match="nothing is served"):
        listed_models([], None)
