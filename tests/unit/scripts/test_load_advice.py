"""Advice for common reasons why a script cannot load its model."""

import pickle
from pathlib import Path

import pytest

from stoker.errors import LoadFailed
from stoker.scripts.coroutines import finish
from stoker.scripts.entry_script import EntryScript
from stoker.scripts.load_advice import load_advice


def raised_by(content: bytes) -> Exception:
    """Return the error of unpickling."""
    with pytest.raises((ImportError, AttributeError)) as raised:
        pickle.loads(content)
    return raised.value


TREES = ValueError("node array from the pickle has an incompatible dtype:\n- expected: {'names': []}")


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        pytest.param(raised_by(b"csklearn.ensemble._gb_losses\nDeviance\n."), "another version", id="module"),
        pytest.param(raised_by(b"csklearn.preprocessing._data\nImputer\n."), "another version", id="class"),
        pytest.param(
            AttributeError("module 'sklearn.ensemble._gb' has no attribute 'BinomialDeviance'"),
            "another version",
            id="class of an old protocol",
        ),
        pytest.param(
            ModuleNotFoundError("azureml.interpret", name="azureml.interpret"),
            "azureml.interpret is a part of Azure's SDK",
            id="SDK",
        ),
        pytest.param(TREES, "--environment FILE --system-managed", id="trees"),
        pytest.param(
            ModuleNotFoundError("azureml.automl.runtime", name="azureml.automl.runtime"),
            "classes of Azure's AutoML (azureml.automl.runtime)",
            id="AutoML",
        ),
        pytest.param(
            ModuleNotFoundError("azureml.training", name="azureml.training"), "as ONNX", id="AutoML 2"
        ),
        pytest.param(
            ModuleNotFoundError("No module named 'sklearn'", name="sklearn"),
            "sklearn is neither installed nor beside the script; stoker doctor lists",
            id="a package",
        ),
        pytest.param(
            raised_by(b"cnothing_like_that\nModel\n."), "stoker doctor lists", id="a pickle's package"
        ),
    ],
)
def test_common_load_error_has_an_advice(error: Exception, advice: str) -> None:
    """The advice is one line that says what to do."""
    text = load_advice(error)
    assert advice in text
    assert text.startswith("Advice: ")
    assert text.count("\n") == 1


@pytest.mark.parametrize(
    "error",
    [
        raised_by(b"cjson\nModel\n."),
        AttributeError("'LogisticRegression' object has no attribute 'x'"),
        ValueError("bad"),
    ],
    ids=repr,
)
def test_other_failures_have_no_advice(error: Exception) -> None:
    """The traceback is enough for mistakes of the script."""
    assert load_advice(error) == ""


@pytest.mark.parametrize("name", ["azureml", "inference_schema", "azureml_inference_server_http"])
def test_modules_of_azure_come_with_a_distribution(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Without the distribution, the advice is to install it, not to change the script."""
    error = ModuleNotFoundError(f"No module named '{name}'", name=name)
    monkeypatch.setattr("stoker.scripts.load_advice.find_extension", lambda _: None)
    text = load_advice(error)
    assert text.startswith(f"Advice: {name} is provided by a distribution of Stoker; install ")
    assert text.count("\n") == 1


def test_the_reason_may_lie_deeper() -> None:
    """Causes and contexts of an exception of the script count."""
    error = RuntimeError("no model")
    error.__context__ = TREES
    assert "scikit-learn" in load_advice(error)


def test_the_advice_is_part_of_the_load_error(tmp_path: Path) -> None:
    """The advice stands between the traceback and the files of the model folder."""
    script = tmp_path / "score.py"
    script.write_text(
        "import pickle\ndef init(): pickle.loads(b'csklearn.ensemble._gb_losses\\nX\\n.')\ndef run(data): ...\n"
    )
    with pytest.raises(LoadFailed, match=r"(?s)No module named.*\nAdvice: .*\nThe model folder"):
        EntryScript(script, tmp_path).initialise(finish)
