"""Scripts of TensorFlow 1 are recognised, and `import tensorflow` gives them its API."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from stoker.errors import InvalidSettings, LoadFailed
from stoker.models.deployments import resolve
from stoker.scripts.tensorflow_v1 import TensorflowUse, first_v1_use, install_version_1, read_uses
from stoker.settings.loading import load_settings
from stoker.settings.workspace import Workspace


def module(name: str, **members: Any) -> ModuleType:
    """A module with these members."""
    made = ModuleType(name)
    vars(made).update(members)
    return made


def tensorflow() -> Any:
    """A substitute for TensorFlow 2 with a few names of both versions of its API."""
    v1 = module(
        "v1",
        Session="session of version 1",
        placeholder=int,
        constant="constant of version 1",
        train=module("train", import_meta_graph=int, Checkpoint=int),
        nn=module("nn", softmax=int, rnn_cell=module("rnn_cell")),
    )
    v1.disable_v2_behavior = lambda: setattr(v1, "disabled", True)
    return module(
        "tensorflow",
        __version__="2.99",
        __path__=["somewhere"],
        compat=module("compat", v1=v1),
        constant="constant of version 2",
        function=int,
        Tensor=type("Tensor", (), {}),
        train=module("train", Checkpoint=int),
        nn=module("nn", softmax=int),
    )


def uses(tmp_path: Path, text: str, **beside: str) -> list[TensorflowUse]:
    """Return the uses in a script, with these modules beside it."""
    script = tmp_path / "score.py"
    script.write_text(text)
    for name, content in beside.items():
        file = tmp_path.joinpath(*name.split("__")).with_suffix(".py")
        file.parent.mkdir(exist_ok=True)
        file.write_text(content)
    return read_uses(script, [str(tmp_path)])


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("import tensorflow as tf\nsess = tf.Session()", "Session"),
        ("import tensorflow\ntensorflow.Session", "Session"),
        ("import tensorflow as T\ndef run(d):\n  return T.train.import_meta_graph(d)", "train.import_meta_graph"),
        ("def init():\n  import tensorflow as tf\n  tf.placeholder(1)", "placeholder"),
        ("from tensorflow import Session", "Session"),
        ("from tensorflow import Session as S, constant", "Session"),
        ("from tensorflow import train\ntrain.import_meta_graph('x')", "train.import_meta_graph"),
        ("from tensorflow import train as t\nt.import_meta_graph('x')", "train.import_meta_graph"),
        ("from tensorflow.train import import_meta_graph", "train.import_meta_graph"),
        ("import tensorflow as tf\nwith tf.Session(graph=g).as_default(): pass", "Session"),
        ("import tensorflow.nn as nn\nnn.rnn_cell.LSTM", "nn.rnn_cell"),
    ],
)  # fmt: skip
def test_a_script_of_tensorflow_1_is_recognised(tmp_path: Path, text: str, name: str) -> None:
    """A name that only version 1 of the API has shows it, under any alias."""
    found = first_v1_use(uses(tmp_path, text), tensorflow())
    assert found is not None
    assert found.name.startswith(name)
    assert found.file.name == "score.py"


@pytest.mark.parametrize(
    "text",
    [
        "import json",
        "import tensorflow as tf\ntf.constant(1)\ntf.nn.softmax\ntf.train.Checkpoint.restore",
        "import tensorflow as tf\n@tf.function\ndef f(x: tf.Tensor): return x.Session",
        "import tensorflow as tf\ntf.Tensor.placeholder",
        "import tensorflow as tf\ntf.no_such_thing",
        "import tensorflow.compat.v1 as tf\ntf.disable_v2_behavior()\ntf.Session()",
        "from tensorflow.compat import v1 as tf\ntf.Session()",
        "import tensorflow as tf\ntf.compat.v1.Session()",
        "import tensorflow as tf\ntf = tf.compat.v1\ntf.Session()",
        "try:\n  import tensorflow.compat.v1 as tf\nexcept ImportError:\n  import tensorflow as tf\ntf.Session()",
        "import tensorflow_of_mine as tf\ntf.Session()",
        "from .tensorflow import Session",
        "from tensorflow.python.framework import ops",
        "class tf: Session = 1\ntf.Session",
    ],
)
def test_other_scripts_keep_todays_tensorflow(tmp_path: Path, text: str) -> None:
    """Scripts of version 2, scripts that choose their API themselves, and scripts without TensorFlow."""
    assert first_v1_use(uses(tmp_path, text), tensorflow()) is None


def test_modules_beside_the_script_count(tmp_path: Path) -> None:
    """Only modules that the script imports count, in any form and depth."""
    old = "import tensorflow as tf\n\ntf.Session()\n"
    found = first_v1_use(uses(tmp_path, "import helper", helper="import deeper", deeper=old), tensorflow())
    assert str(found) == "tf.Session (deeper.py, line 3)"
    found = first_v1_use(
        uses(tmp_path, "from package import net", package__net="from . import old", package__old=old),
        tensorflow(),
    )
    assert found is not None
    assert found.file.name == "old.py"
    assert not uses(tmp_path, "import json", train=old)


def test_keras_uses_tensorflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keras counts unless another backend is set; its names are not those of TensorFlow."""
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    found = uses(tmp_path, "from keras.models import load_model\nimport keras\nkeras.Session")
    assert {use.name for use in found} == {""}
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    assert uses(tmp_path, "import keras") == []


def test_unreadable_script_is_left_to_the_import(tmp_path: Path) -> None:
    """The import raises the error with its traceback."""
    assert uses(tmp_path, "def init(:") == []
    assert read_uses(tmp_path / "missing.py", [str(tmp_path)]) == []
    assert len(uses(tmp_path, "import helper, tensorflow", helper="def (")) == 1


@pytest.mark.parametrize(
    "text",
    [
        "import tensorflow as tf\n\nx = tf.contrib.layers.flatten(1)",
        "\n\nfrom tensorflow.contrib import rnn",
        "\n\nimport tensorflow.contrib.slim as slim",
    ],
)
def test_contrib_is_refused(tmp_path: Path, text: str) -> None:
    """It has no substitute; the message has the place of its use."""
    with pytest.raises(
        LoadFailed, match=r"tf\.contrib\S* \(score\.py, line 3\).*TensorFlow 2 has no tf\.contrib"
    ):
        first_v1_use(uses(tmp_path, text), tensorflow())


@pytest.mark.parametrize("wish", ["auto", "v1", "off"])
def test_the_setting_reaches_the_script(tmp_path: Path, wish: str) -> None:
    """`tensorflow_compat` is a key of the model in the deployment file; other words are refused."""
    (tmp_path / "score.py").touch()
    file = tmp_path / "deployment.yaml"
    file.write_text(f"models: [{{path: score.py, tensorflow_compat: '{wish}'}}]\n")
    settings = load_settings({}, {}, file, ())
    with ExitStack() as leases:
        (deployed,) = resolve(settings, Workspace(tmp_path / "workspace"), leases)
    assert deployed.tensorflow_compat == wish
    file.write_text("models: [{path: score.py, tensorflow_compat: v2}]\n")
    with pytest.raises(InvalidSettings, match="tensorflow_compat must be auto or v1 or off"):
        load_settings({}, {}, file, ())


def test_a_name_that_cannot_be_loaded_does_not_count(tmp_path: Path) -> None:
    """TensorFlow loads parts of itself lazily, and loading may fail."""

    class Lazy(ModuleType):
        def __getattr__(self, name: str) -> Any:
            raise ImportError(name)

    new = tensorflow()
    new.lazy = new.compat.v1.lazy = Lazy("lazy")
    assert first_v1_use(uses(tmp_path, "import tensorflow as tf\ntf.lazy.thing"), new) is None


def test_the_script_gets_version_1(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Names of version 1 come first, then those of version 2; the log has the reason."""
    new = tensorflow()
    for name in ("train", "compat"):
        monkeypatch.setitem(sys.modules, f"v1.{name}", getattr(new.compat.v1, name, new.compat))
        # These lines let monkeypatch remove the modules that the call adds.
        monkeypatch.setitem(sys.modules, f"tensorflow.{name}", None)
        monkeypatch.delitem(sys.modules, f"tensorflow.{name}")
    monkeypatch.setitem(sys.modules, "tensorflow", new)
    caplog.set_level("INFO")
    install_version_1(new, "the reason")
    import tensorflow as tf
    from tensorflow import Session, function
    from tensorflow.train import import_meta_graph

    assert import_meta_graph is int
    assert "tensorflow.compat" not in sys.modules
    assert tf.Session == Session == "session of version 1"
    assert tf.constant == "constant of version 1"
    assert tf.function is function is int
    assert (tf.__name__, tf.__version__, tf.__path__) == ("tensorflow", "2.99", ["somewhere"])
    assert new.compat.v1.disabled
    assert "placeholder" in dir(tf)
    with pytest.raises(AttributeError, match="no attribute 'contrib', not even in version 1"):
        tf.contrib  # noqa: B018
    assert caplog.messages == ["TensorFlow 2.99 is given as tensorflow.compat.v1: the reason"]
