"""The description of a server in OpenAPI 3.1."""

import json
from typing import Any

import pytest
from tests.puppets import BODIES, puppet_service

from stoker.gateway.describing.openapi import describe_server
from stoker.gateway.describing.swagger import Naming
from stoker.script_form import ScriptForm
from stoker.tensors import ModelTensors, Signature, TensorInfo, TensorSpec

PAIR = Signature(
    (TensorSpec("image", "float32", (28, 28)), TensorSpec("kind", "int8", ())),
    (TensorSpec("p", "float32", (10,)), TensorSpec("ok", "bool", ())),
)
FREE = Signature(
    (),
    (),
    takes="tensors",
    tensors=ModelTensors(
        (TensorInfo("tokens", "int64", (-1, -1)),), (TensorInfo("last", "float16", (-1,)),), batched=True
    ),
)


def describe(signature: Signature | None, *, non_finite: str = "words", **names: Any) -> dict[str, Any]:
    """The operation of the path of a model named digits."""
    service = puppet_service("digits", non_finite=non_finite)
    service.signature = signature
    described = describe_server([service], names.get("leading"), names.get("examples", {}), Naming())
    assert json.loads(json.dumps(described)) == described
    operation: dict[str, Any] = described["paths"]["/api/v1/service/digits/score"]["post"]
    assert ("/score" in described["paths"]) is (names.get("leading") == "digits")
    return operation


def body_of(operation: dict[str, Any]) -> dict[str, Any]:
    body: dict[str, Any] = operation["requestBody"]["content"]["application/json"]
    return body


def test_inputs_have_their_shapes_and_the_bounds_of_their_numbers() -> None:
    """At least one row; other inputs than those of the model are refused."""
    data = body_of(describe(PAIR))["schema"]["properties"]["data"]
    assert data["required"] == ["image", "kind"]
    assert data["additionalProperties"] is False
    kind, image = data["properties"]["kind"], data["properties"]["image"]
    assert kind == {
        "type": "array",
        "minItems": 1,
        "items": {"type": "integer", "format": "int8", "minimum": -128, "maximum": 127},
    }
    row = image["items"]
    assert (row["minItems"], row["maxItems"], row["items"]["maxItems"]) == (28, 28, 28)
    assert row["items"]["items"]["exclusiveMaximum"] == pytest.approx(3.4028235677973366e38)


def test_free_sizes_have_no_bound() -> None:
    """The answer of a model with one output is that tensor."""
    operation = describe(FREE)
    tokens = body_of(operation)["schema"]["properties"]["data"]
    assert ("maxItems" in tokens, "maxItems" in tokens["items"]) == (False, False)
    answer = operation["responses"]["200"]["content"]["application/json"]["schema"]
    assert answer["items"] == {"type": "number", "format": "float16"}


@pytest.mark.parametrize(("non_finite", "kind"), [("null", ["number", "null"]), ("words", "number")])
def test_answer_may_have_null_where_that_stands_for_numbers(non_finite: str, kind: object) -> None:
    """JSON has neither NaN nor infinities."""
    answer = describe(PAIR, non_finite=non_finite)["responses"]["200"]["content"]["application/json"]
    assert answer["schema"]["properties"]["p"]["items"]["items"]["type"] == kind
    assert answer["example"] == {"p": [[0] * 10], "ok": [False]}


def test_body_without_a_known_form_has_an_open_schema() -> None:
    """This holds for a model that is not loaded yet, and for a script without a schema."""
    script = Signature(BODIES.inputs, BODIES.outputs, takes="body", script=ScriptForm())
    for signature in (None, script):
        operation = describe(signature)
        assert (body_of(operation), operation["requestBody"]["required"]) == ({"schema": {}}, False)


def test_script_has_its_own_schemas_and_the_given_example() -> None:
    """Those of its decorators, and its sample."""
    form = ScriptForm(input_schema={"type": "object", "properties": {"a": {"type": "integer"}}})
    service_body = body_of(
        describe(
            Signature(BODIES.inputs, BODIES.outputs, takes="body", script=form),
            leading="digits",
            examples={"digits": {"a": 3}},
        )
    )
    assert service_body == {"schema": form.input_schema, "example": {"a": 3}}
