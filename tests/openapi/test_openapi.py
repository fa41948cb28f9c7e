"""The server behaves as `/openapi.json` describes, by schemathesis, with valid bodies and others."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from tests.contract.protocol_models import write_models
from tests.live_server import PRIMARY, LiveServer
from tests.patience import PROGRAM_S
from tests.tiny_models import write_doubler, write_script

PROGRAM: Final = Path(sys.prefix) / "openapi" / "bin" / "st"

SCHEMA_SCRIPT: Final = """
from inference_schema.schema_decorators import input_schema, output_schema
from inference_schema.parameter_types.standard_py_parameter_type import StandardPythonParameterType

def init():
    pass

@input_schema("words", StandardPythonParameterType(["a"]))
@input_schema("count", StandardPythonParameterType(1))
@output_schema(StandardPythonParameterType({"words": ["a"]}))
def run(words, count):
    return {"words": [str(words), str(count)]}
"""
ANY_SCRIPT: Final = """
def init():
    pass

def run(raw_data):
    return {"seen": len(raw_data)}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server with keys, of models with one and several inputs, strings and images, and of scripts."""
    if not PROGRAM.is_file():
        pytest.skip("schemathesis is not installed: `make test-openapi` brings it")
    scratch = tmp_path_factory.mktemp("openapi")
    write_models(scratch / "models")
    write_doubler(scratch / "doubler.onnx")
    write_script(scratch / "schema", SCHEMA_SCRIPT)
    write_script(scratch / "any", ANY_SCRIPT)
    deployment = scratch / "deployment.yaml"
    # Infinity, which a product of large numbers is, is no JSON.
    deployment.write_text("""
frontends: 1
non_finite: "null"
models:
  - {path: models/scores.onnx}
  - {path: models/pair.onnx}
  - {path: models/texts.onnx}
  - {path: doubler.onnx, name: pictures, image: {size: [2, 2], channels: 1, scale: 255}}
  - {path: schema/score.py, name: schema}
  - {path: any/score.py, name: any}
""")
    with LiveServer(scratch, "--config", deployment) as running:
        yield running


# GET takes the query for a body, as on Azure: the description leaves that out.
LEFT_OUT: Final = "unsupported_method"
# No schema says that inputs have the same number of rows. Azure's of scripts say neither which members are needed nor
# how large a number may be.
LEFT_OUT_OF_OTHERS: Final = f"{LEFT_OUT},negative_data_rejection,positive_data_acceptance"


@pytest.mark.parametrize(
    ("choice", "left_out", "operations"),
    [("--exclude-path-regex", LEFT_OUT, 6), ("--include-path-regex", LEFT_OUT_OF_OTHERS, 2)],
    ids=["most", "others"],
)
def test_server_behaves_as_described(
    server: LiveServer, tmp_path: Path, choice: str, left_out: str, operations: int
) -> None:
    """Bodies that fit a schema are scored, others refused, and each answer fits the schema of its status."""
    command = [
        *(PROGRAM, "run", f"http://127.0.0.1:{server.port}/openapi.json", choice, "/(schema|pair)/"),
        *("--header", f"Authorization: Bearer {PRIMARY}", "--max-examples", "60", "--seed", "1"),
        *("--exclude-checks", left_out),
    ]
    checked = subprocess.run(
        command,
        env={**os.environ, "SCHEMATHESIS_HOOKS": str(Path(__file__).parent / "hooks.py")},
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
        timeout=PROGRAM_S,
    )
    assert checked.returncode == 0, f"{checked.stdout}\n{server.output()[-2000:]}"
    assert f"Tested: {operations}" in checked.stdout
