"""The dialect of a service, chosen by the inputs of its model when that is loaded."""

from dataclasses import replace

import pytest
from tests.http.raw_http import rows_body
from tests.puppets import BODIES, ROWS, TEXTS, Joined, PuppetRuntime, puppet_service

from stoker.gateway.scoring.dialects import AzureDialect, PackedDialect, RowsDialect, Unloaded
from stoker.gateway.scoring.images import ImageDialect, ImageScoring
from stoker.gateway.scoring.script_dialect import ScriptDialect
from stoker.script_form import ScriptForm
from stoker.settings.image_input import ImageInput
from stoker.tensors import ModelTensors, Signature, TensorInfo

PACKED = replace(
    BODIES,
    takes="tensors",
    tensors=ModelTensors(
        (TensorInfo("n", "int64", (1,)),), (TensorInfo("y", "float32", (-1,)),), batched=False
    ),
)


@pytest.mark.parametrize(
    ("signature", "expected", "direct", "wants_head"),
    [
        (ROWS, RowsDialect, True, False),
        (TEXTS, RowsDialect, True, False),
        (PACKED, PackedDialect, True, False),
        (replace(BODIES, script=ScriptForm()), ScriptDialect, True, False),
        (replace(BODIES, script=ScriptForm("schema")), ScriptDialect, False, True),
        (replace(BODIES, script=ScriptForm(wants_head=True)), ScriptDialect, False, True),
    ],
)
def test_dialect_follows_from_the_model_signature(
    signature: Signature, expected: type[AzureDialect], direct: bool, wants_head: bool
) -> None:
    """Models take rows, tensors or whole bodies; only scripts that read the head leave the fast path."""
    service = puppet_service()
    assert type(service.dialect) is Unloaded
    with Joined(PuppetRuntime(signature), capacity=4) as joined:
        service.attach(joined.exchange)
    dialect = service.dialect
    assert (type(dialect), dialect.direct, dialect.wants_head) == (expected, direct, wants_head)


def test_a_model_with_an_image_input_speaks_images() -> None:
    """It gets the head with the body's type, and takes requests of the fast path as well."""
    images = ImageScoring(ImageInput(1, 2, 1), max_pixels=4, max_rows_bytes=100)
    service = puppet_service(images=images)
    with Joined(PuppetRuntime(replace(ROWS, inputs=(replace(ROWS.inputs[0], shape=(1, 2, 1)),)))) as joined:
        service.attach(joined.exchange)
    assert (type(service.dialect), service.dialect.direct, service.dialect.wants_head) == (
        ImageDialect,
        True,
        True,
    )


def test_a_request_that_came_before_its_model_is_read_as_the_model_asks() -> None:
    """It waited for the end of its turn, within which the model was joined."""
    service = puppet_service()
    answers: list[tuple[int, bytes]] = []
    with Joined() as joined:

        async def arrive() -> None:
            service.score_soon(
                rows_body([1, 2]), None, lambda status, _, body: answers.append((status, body))
            )
            service.attach(joined.exchange)

        joined.loop.run_until_complete(arrive())
        joined.settle()
    assert answers == [(200, b"[[2.0,4.0]]")]
