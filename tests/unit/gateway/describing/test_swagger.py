"""The description of a service."""

import json
from dataclasses import replace
from typing import Any

import pytest
from tests.puppets import BODIES, TEXTS, puppet_service

from stoker.errors import NotFound
from stoker.gateway.describing.swagger import Naming, describe
from stoker.gateway.scoring.service import Service
from stoker.gateway.scoring.service_facts import ServiceFacts
from stoker.script_form import ScriptForm
from stoker.tensors import ModelTensors, Signature, TensorInfo, TensorSpec

PREFIX = "/api/v1/service/digits"
SCORE = f"{PREFIX}/score"
VERSIONS = ["2", "3", "3.1"]
MODEL = Signature(
    (TensorSpec("image", "float32", (28, 28)), TensorSpec("kind", "int64", ())),
    (TensorSpec("p", "float32", (10,)), TensorSpec("ok", "bool", ())),
)


def service(signature: Signature | None) -> Service:
    """A service named digits."""
    made = puppet_service("digits")
    made.signature = signature
    return made


def references(value: Any) -> list[str]:
    """Every $ref within a description."""
    match value:
        case dict():
            own = [value["$ref"]] if "$ref" in value else []
            return own + [found for item in value.values() for found in references(item)]
        case list():
            return [found for item in value for found in references(item)]
        case _:
            return []


@pytest.mark.parametrize("version", [None, *VERSIONS, "2.0", "3.0"])
@pytest.mark.parametrize("signature", [MODEL, BODIES, TEXTS, None], ids=str)
def test_a_description_is_whole(signature: Signature | None, version: str | None) -> None:
    """It is JSON, says its version, has Azure's operation names, and refers to nothing that is not there."""
    described = describe(service(signature), Naming(), PREFIX, version)
    assert json.loads(json.dumps(described)) == described
    if version in (None, "2", "2.0"):
        assert described["swagger"] == "2.0"
    else:
        assert described["openapi"] == {"3": "3.0.3", "3.0": "3.0.3", "3.1": "3.1.0"}[version]
    assert described["info"]["title"] == "digits"
    operations = {
        path: next(iter(methods.values()))["operationId"] for path, methods in described["paths"].items()
    }
    assert operations == {
        f"{PREFIX}/": "ServiceHealthCheck",
        SCORE: "RunMLService",
        f"{PREFIX}/swagger.json": "GetSwaggerSpec",
    }
    found = references(described)
    assert len(found) >= 3
    for reference in found:
        target = described
        for part in reference.removeprefix("#/").split("/"):
            target = target[part]
        assert target["type"] in ("object", "array")


@pytest.mark.parametrize("version", VERSIONS)
def test_scoring_needs_the_bearer_key(version: str) -> None:
    """Generated clients send the Authorization header."""
    described = describe(service(MODEL), Naming(), PREFIX, version)
    assert described["paths"][SCORE]["post"]["security"] == [{"Bearer": []}]
    schemes = described.get("securityDefinitions") or described["components"]["securitySchemes"]
    assert (schemes["Bearer"]["in"], schemes["Bearer"]["name"]) == ("header", "Authorization")


def schemas(signature: Signature | None) -> dict[str, Any]:
    """The schemas of a service with this signature."""
    found: dict[str, Any] = describe(service(signature), Naming(), PREFIX, "3")["components"]["schemas"]
    return found


def rows(item: dict[str, Any], *shape: int) -> dict[str, Any]:
    """The schema of a list of rows of this shape."""
    for size in reversed(shape):
        item = {"type": "array", "items": item, "minItems": size, "maxItems": size}
    return {"type": "array", "items": item}


def test_several_inputs_and_outputs_are_described_by_name() -> None:
    """Shapes and kinds of numbers are those of the signature."""
    found = schemas(MODEL)
    image = rows({"type": "number", "format": "float32"}, 28, 28)
    kind = rows({"type": "integer", "format": "int64"})
    data = {"type": "object", "properties": {"image": image, "kind": kind}, "required": ["image", "kind"]}
    assert found["ServiceInput"] == {"type": "object", "properties": {"data": data}, "required": ["data"]}
    p, ok = rows({"type": "number", "format": "float32"}, 10), rows({"type": "boolean", "format": "bool"})
    assert found["ServiceOutput"] == {
        "type": "object",
        "properties": {"p": p, "ok": ok},
        "required": ["p", "ok"],
    }


def test_one_input_and_one_output_are_lists_of_rows() -> None:
    """The usual model: {"data": rows} in, rows out."""
    found = schemas(Signature((TensorSpec("x", "uint8", (4,)),), (TensorSpec("y", "float64", ()),)))
    assert found["ServiceInput"]["properties"]["data"] == rows({"type": "integer", "format": "uint8"}, 4)
    assert found["ServiceOutput"] == rows({"type": "number", "format": "float64"})


def test_tensors_of_free_sizes_are_described() -> None:
    """Free sizes have no bounds, and a tensor of any rank has no form."""
    tensors = ModelTensors(
        (TensorInfo("x", "int8", (-1, 2)), TensorInfo("any", "float32", (), any_rank=True)),
        (TensorInfo("y", "string", (-1,)),),
        batched=True,
    )
    found = schemas(Signature((), (), takes="tensors", tensors=tensors))
    data = found["ServiceInput"]["properties"]["data"]
    assert data["properties"] == {"x": rows({"type": "integer", "format": "int8"}, 2), "any": {}}
    assert found["ServiceOutput"] == {"type": "array", "items": {"type": "string", "format": "string"}}


@pytest.mark.parametrize("signature", [BODIES, None], ids=str)
def test_a_script_with_bodies_of_its_own_is_any_object(signature: Signature | None) -> None:
    """Only the script knows its inputs; the same holds until a model is loaded."""
    found = schemas(signature)
    assert found["ServiceInput"] == found["ServiceOutput"] == {"type": "object", "example": {}}


def test_json_rows_leave_the_answer_open() -> None:
    """The rows go in as numbers; the script decides its answer."""
    found = schemas(TEXTS)
    assert found["ServiceInput"]["properties"]["data"] == rows({"type": "number", "format": "float32"}, 2)
    assert found["ServiceOutput"] == {"type": "object", "example": {}}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_script_is_described_by_its_schemas(version: str) -> None:
    """The schemas of its decorators are included unchanged."""
    given = {"type": "object", "properties": {"a": {"type": "integer"}}, "example": {"a": 1}}
    script = ScriptForm(kind="schema", input_schema=given, output_schema={"type": "string"})
    made = service(replace(BODIES, script=script))
    described = describe(made, Naming(), "", version)
    schemas = described["definitions"] if version == "2" else described["components"]["schemas"]
    assert (schemas["ServiceInput"], schemas["ServiceOutput"]) == (given, {"type": "string"})


def test_names_are_the_operators() -> None:
    """The operator sets title, version and sentence; without them they are the model's name and Azure's sentence."""
    made = service(MODEL)
    plain = describe(made, Naming(), "", None)["info"]
    made.facts = ServiceFacts("digits", description="Reads digits.")
    named = describe(made, Naming("ML service", "2.0"), "", None)["info"]
    azure = "API specification for the Azure Machine Learning service digits"
    assert plain == {"title": "digits", "version": "1.0", "description": azure}
    assert named == {"title": "ML service", "version": "2.0", "description": "Reads digits."}


@pytest.mark.parametrize("version", ["1", "4", "2.1", "x", ""])
def test_an_unknown_version_is_not_found(version: str) -> None:
    """The message says which there are, in Azure's words."""
    with pytest.raises(NotFound, match=rf"Swagger version \[{version}\] is not valid"):
        describe(service(MODEL), Naming(), PREFIX, version)
