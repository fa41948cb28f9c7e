"""Imports of Azure's packages: the real ones where they are, ours everywhere else."""

import importlib
import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.patience import PROGRAM_S

from stoker_azure.finder import IMPORTS, install, uninstall

Write = Callable[[str, str], None]
TOPS = {name.partition(".")[0] for name in IMPORTS} | {"contoso"}


def forget() -> None:
    """Drop everything that was imported under the names of Azure's packages."""
    for name in [name for name in sys.modules if name.partition(".")[0] in TOPS]:
        del sys.modules[name]


@pytest.fixture(autouse=True)
def _installed() -> None:
    """Whichever test is the first one of the process."""
    install()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write modules that can be imported; no finder is installed, and nothing is imported yet."""
    uninstall()
    forget()
    monkeypatch.syspath_prepend(tmp_path)

    def write(path: str, text: str = "") -> None:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        importlib.invalidate_caches()

    yield write
    uninstall()
    forget()
    install()


@pytest.mark.parametrize("name", IMPORTS)
def test_every_name_can_be_imported(name: str) -> None:
    """Each entry of the table leads to a module, and the packages above it can be imported as well."""
    assert importlib.import_module(name).__name__.startswith(
        ("stoker_azure.", "stoker_azure.sdk.", "stoker_run.")
    )
    while name := name.rpartition(".")[0]:
        assert importlib.import_module(name) is sys.modules[name]


def test_both_names_are_one_module() -> None:
    """The flag that `rawhttp` sets is one, whichever name a script uses."""
    from azureml.contrib.services import aml_request as old
    from azureml_inference_server_http.api import aml_request as new

    from stoker_azure import aml_request as ours

    assert old is new is ours
    assert ours.__spec__.name == ours.__name__ == "stoker_azure.aml_request"


def test_importing_the_package_is_enough() -> None:
    """`import stoker.azure` in a fresh interpreter makes the imports of scripts work, and imports little itself."""
    program = """
import sys
import stoker.azure
assert not {"numpy", "werkzeug", "orjson"} & set(sys.modules)
import azureml.contrib.services
from azureml.core import Model
from azureml.core.model import Model as same
from azureml.contrib.services.aml_request import AMLRequest, rawhttp
from azureml.contrib.services.aml_response import AMLResponse
from azureml.exceptions import ModelNotFoundException
from inference_schema.schema_decorators import input_schema, output_schema
assert "inference_schema.schema_util" in sys.modules, "whoever decorates can be asked"
assert "pandas" not in sys.modules
assert Model is same
"""
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=PROGRAM_S
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("azureml.interpret", "interpret-community"),
        ("azureml.explain.model.tabular_explainer", "azureml.explain is not offered: explain the model"),
        ("azureml.contrib.pipeline.steps", "azureml.contrib.pipeline is not offered: submit each script"),
        ("azureml.contrib.notebook", "a preview"),
        ("azureml.contrib.fairness", "fairlearn"),
        ("azureml.automl.runtime", "stoker tune"),
        ("azureml.train.automl.run", "stoker tune"),
        ("azureml.train.other", "ScriptRunConfig"),
        ("azureml.pipeline.core.graph", "Experiment.submit"),
        ("azureml.dataprep", "pandas"),
        ("azureml.datadrift", "stoker serve --collect"),
        ("azureml.data.dataset_snapshot", "Dataset.File"),
        ("azureml.core.util", "take it out of the script"),
        ("azureml.fsspec", "as_mount"),
        ("azureml.made_up", "take it out of the script"),
    ],
)
def test_unoffered_module_is_missing_with_a_remedy(site: Write, name: str, instead: str) -> None:
    """Its import in any form is a ModuleNotFoundError with a sentence; asking for it finds that it is missing."""
    install()
    package, _, last = name.rpartition(".")
    statements = [f"import {name}", f"from {name} import Something"]
    if package not in IMPORTS:
        statements.append(f"from {package} import {last}")
    for statement in statements:
        with pytest.raises(ModuleNotFoundError, match=rf"^azureml\S+ is not offered: .*{instead}|{instead}"):
            exec(statement)
    with pytest.raises(ModuleNotFoundError, match="is not offered"):
        importlib.util.find_spec(name)


def test_unknown_names_are_missing(site: Write) -> None:
    """Packages of other names, and misspelt classes."""
    install()
    for name in ("inference_schema.other", "azureml_inference_server_http.server"):
        with pytest.raises(ModuleNotFoundError, match=f"No module named '{name}'"):
            importlib.import_module(name)
    for statement in ("from azureml.core import Workspaces", "from azureml.contrib import Nothing"):
        with pytest.raises(ImportError, match="cannot import name"):
            exec(statement)


def test_standard_modules_are_imported_as_by_azureml_core() -> None:
    """Scripts use them without importing them, in code that submits and in a run."""
    uses = (
        "import concurrent, email, html, http, importlib, logging, urllib, wsgiref, xml\n"
        "concurrent.futures, email.utils, email.parser, html.entities, http.client, http.cookiejar, http.cookies\n"
        "importlib.abc, importlib.machinery, importlib.metadata, importlib.resources, importlib.util\n"
        "logging.handlers, urllib.error, urllib.parse, urllib.request, wsgiref.handlers, xml.etree.ElementTree\n"
    )
    faces = Path(__file__).parents[3] / "runs" / "agent" / "stoker_run" / "faces"
    for entrance in ("import stoker.azure", f"import sys; sys.path.insert(0, {str(faces)!r})"):
        done = subprocess.run(
            [sys.executable, "-c", f"{entrance}\nimport azureml.core\n{uses}"],
            check=False, capture_output=True, text=True, timeout=PROGRAM_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr


def test_star_imports_load_all_names() -> None:
    """All names of `azureml.core`, those for training among them."""
    install()
    names: dict[str, object] = {}
    exec("from azureml.core import *", names)
    trained = {"Dataset", "Datastore", "Experiment", "Run", "RunConfiguration", "ScriptRunConfig"}
    assert trained | {"ComputeTarget", "Environment", "Model", "Webservice", "Workspace"} <= set(names)


def test_a_real_package_wins(site: Write) -> None:
    """A module that is installed is the one that is imported, though ours has the same name."""
    site("azureml/__init__.py", "")
    site("azureml/core/__init__.py", "")
    site("azureml/core/model.py", "class Model: real = True")
    install()
    assert importlib.import_module("azureml.core.model").Model.real
    with pytest.raises(ImportError):
        exec("from azureml.core import Model")


@pytest.mark.parametrize("initial", ["azureml/__init__.py", "azureml/mlflow.py"])
def test_a_real_package_gets_the_children_that_it_lacks(site: Write, initial: str) -> None:
    """Below another package or namespace `azureml`, only missing modules are Stoker's."""
    site(initial, "")
    site("azureml/mlflow.py", "real = True")
    install()
    import azureml.contrib.services.aml_request

    assert azureml.contrib.services.aml_request is sys.modules["stoker_azure.aml_request"]
    assert importlib.import_module("azureml.mlflow").real
    assert not hasattr(sys.modules["azureml"].__spec__.loader, "provided")
    uninstall()
    assert not hasattr(sys.modules["azureml"], "contrib")


def test_a_real_server_package_provides_the_older_name_too(site: Write) -> None:
    """Its flag would be another one than ours: both names have to be its module."""
    site("azureml_inference_server_http/__init__.py", "")
    site("azureml_inference_server_http/api/__init__.py", "")
    site("azureml_inference_server_http/api/aml_request.py", "_rawHttpRequested = False")
    install()
    from azureml.contrib.services import aml_request as old
    from azureml_inference_server_http.api import aml_request as new

    assert old is new
    assert new.__file__.endswith("aml_request.py")
    assert new is not sys.modules["stoker_azure.aml_request"]


def test_a_real_package_that_is_broken_says_so(site: Write) -> None:
    """A package that is installed but cannot be imported is not replaced behind the user's back."""
    site("inference_schema/__init__.py", "raise ImportError('wrapt is missing')")
    install()
    with pytest.raises(ImportError, match="wrapt is missing"):
        importlib.import_module("inference_schema.schema_decorators")


def test_installing_twice_is_installing_once(site: Write) -> None:
    """And it stands behind every finder that was there before."""
    install()
    install()
    assert [type(each).__name__ for each in sys.meta_path].count("_Finder") == 1
    assert [type(each).__name__ for each in sys.meta_path[-2:]] == ["_Finder", "_Refusal"]
    uninstall()
    uninstall()
    assert {"_Finder", "_Refusal"}.isdisjoint(type(each).__name__ for each in sys.meta_path)
    assert importlib.util.find_spec("azureml") is None


def test_further_names_can_be_provided(site: Write) -> None:
    """A module that others lie below gets a path, so that they can be imported; after uninstalling all are gone."""
    site("contoso_core.py", "Workspace = 'workspace'")
    site("contoso_model.py", "Model = 'model'")
    install({"contoso.core": "contoso_core", "contoso.core.model": "contoso_model"})
    import contoso.core.model

    assert contoso.core.model is sys.modules["contoso_model"]
    assert contoso.core is sys.modules["contoso_core"]
    assert contoso.core.Workspace == "workspace"
    uninstall()
    assert importlib.util.find_spec("contoso") is None
    assert "contoso.core" not in sys.modules
    assert "contoso_core" in sys.modules


def test_a_package_cannot_stand_for_one_with_children(site: Write) -> None:
    """Python would load its files a second time under the other name, with a state of their own."""
    site("contoso_package/__init__.py", "")
    install({"contoso.core": "contoso_package", "contoso.core.model": "stoker_azure.model_path"})
    with pytest.raises(
        ImportError, match=r"contoso_package cannot be provided as contoso.core: it is a package"
    ):
        importlib.import_module("contoso.core")
    assert "contoso.core" not in sys.modules


def test_an_import_that_fails_leaves_nothing(site: Write) -> None:
    """The next attempt fails with the same message."""
    install({"contoso.broken": "contoso_broken"})
    site("contoso_broken.py", "1 / 0")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            importlib.import_module("contoso.broken")
    assert "contoso.broken" not in sys.modules


def test_module_loaded_by_another_one_has_its_alias(site: Write) -> None:
    """A module that another one imports has its alias too, and other aliases load nothing."""
    site("contoso_low.py", "")
    site("contoso_high.py", "import contoso_low")
    install({"contoso.low": "contoso_low", "contoso.high": "contoso_high", "contoso.other": "contoso_other"})
    importlib.import_module("contoso.high")
    assert sys.modules["contoso.low"] is sys.modules["contoso_low"]
    assert "contoso.other" not in sys.modules


def test_the_table_cannot_be_changed() -> None:
    """Names are added by `install`."""
    with pytest.raises(TypeError):
        IMPORTS["a"] = "b"  # type: ignore[index]
