"""The decorators, their records, and descriptions of plain Python values.

The schemas and texts are those of the package inference-schema 1.8 for the same samples; where they differ, the
page on imports of the documentation says why.
"""

import datetime as dt
import functools
import inspect
import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stoker_azure.inference_schema import decorators as schema_util
from stoker_azure.inference_schema.decorators import input_schema, output_schema
from stoker_azure.inference_schema.numpy_arrays import NumpyParameterType
from stoker_azure.inference_schema.standard import (
    AbstractParameterType,
    StandardPythonParameterType,
)

ZONE = dt.timezone(dt.timedelta(hours=2))
OBJECT = {"type": "object"}
INTEGER = {"type": "integer", "format": "int64"}


def standard(sample: Any) -> StandardPythonParameterType:
    """A description of a plain value."""
    return StandardPythonParameterType(sample)


def echo(kind: AbstractParameterType, **options: bool) -> Callable[..., Any]:
    """A function that returns its argument as it gets it."""

    @input_schema("data", kind, **options)
    def run(data: Any) -> Any:
        return data

    return run


class Even(AbstractParameterType):
    """A type of a script's own."""

    def deserialize_input(self, input_data: Any) -> int:
        """Refuse odd numbers."""
        if int(input_data) % 2:
            raise ValueError("odd")
        return int(input_data)

    def input_to_swagger(self) -> dict[str, Any]:
        """Describe it as text."""
        return {"type": "string", "example": str(self.sample_input)}


def test_an_undecorated_function() -> None:
    """Nothing is known of it, and every version can express that."""

    def run(data: Any) -> None: ...

    assert not schema_util.is_schema_decorated(run)
    assert schema_util.get_input_schema(run) == OBJECT
    assert schema_util.get_output_schema(run) == OBJECT
    assert schema_util.get_supported_versions(run) == ["2.0", "3.0", "3.1"]
    assert not schema_util.is_schema_decorated(print)


def test_arguments_become_properties_of_one_object() -> None:
    """Described or not, in their order; a sample for each."""

    @input_schema("flag", standard(True), optional=True)
    @input_schema("data", NumpyParameterType(np.array([[1.0, 2.0]])))
    @output_schema(standard({"label": "seven"}))
    def run(data: Any, flag: Any = None, request_headers: Any = None) -> None: ...

    numbers = {"type": "array", "items": {"type": "number", "format": "double"}}
    assert schema_util.is_schema_decorated(run)
    assert schema_util.get_input_schema(run) == {
        "type": "object",
        "properties": {
            "data": {"type": "array", "items": numbers, "format": "numpy.ndarray"},
            "flag": {"type": "boolean"},
            "request_headers": {},
        },
        "example": {"data": [[1.0, 2.0]], "flag": True, "request_headers": ""},
    }
    assert schema_util.get_output_schema(run) == {
        "type": "object",
        "required": ["label"],
        "properties": {"label": {"type": "string"}},
        "example": {"label": "seven"},
    }


@pytest.mark.parametrize("output_first", [True, False])
def test_decorators_apply_in_either_order(output_first: bool) -> None:
    """Conversion and both schemas are the same."""
    decorators = [output_schema(standard([1])), input_schema("data", NumpyParameterType(np.array([1])))]

    def run(data: Any) -> Any:
        return data

    for decorate in decorators if output_first else reversed(decorators):
        run = decorate(run)
    assert isinstance(run(data=[1, 2]), np.ndarray)
    assert schema_util.get_input_schema(run)["example"] == {"data": [1]}
    assert schema_util.get_output_schema(run)["example"] == [1]


def test_a_single_decorator_leaves_the_other_schema_open() -> None:
    """An undescribed input or output is an object."""
    assert schema_util.get_output_schema(echo(standard(1))) == OBJECT

    @output_schema(standard(1))
    def run(data: Any) -> Any:
        return data

    assert schema_util.is_schema_decorated(run)
    assert schema_util.get_input_schema(run) == OBJECT
    assert run("as it is") == "as it is"


def test_a_second_output_is_refused() -> None:
    """A function returns one thing."""

    def run(data: Any) -> None: ...

    with pytest.raises(ValueError, match=r"output schema already defined for function: .*\.run\."):
        output_schema(standard(1))(output_schema(standard(1))(run))


def test_all_schemas_are_listed_by_name() -> None:
    """They are copies, so a change of one has no effect."""

    @input_schema("data", standard(5))
    def listed(data: Any) -> None: ...

    schemas = schema_util.get_schemas_dict()[f"{__name__}.listed"]
    assert schemas == {"input_schema": schema_util.get_input_schema(listed)}
    schemas["input_schema"]["properties"].clear()
    schema_util.get_input_schema(listed)["properties"].clear()
    assert schema_util.get_input_schema(listed)["properties"] == {"data": INTEGER}


def test_a_decorated_function_looks_like_the_function() -> None:
    """Servers look at the signature, and at the code for tracebacks."""

    def run(data: Any, extra: int = 1) -> None:
        """Say something."""

    decorated = output_schema(standard(1))(input_schema("data", standard(1))(run))
    assert inspect.signature(decorated) == inspect.signature(run)
    assert (decorated.__name__, decorated.__doc__) == ("run", "Say something.")
    assert inspect.unwrap(decorated) is run


def test_other_decorators_may_be_around() -> None:
    """With `functools.wraps` and without: servers see through them."""

    def plain(function: Callable[..., Any]) -> Callable[..., Any]:
        def inner(data: Any) -> Any:
            return function(data)

        return inner

    def proper(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def inner(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return inner

    numbers = NumpyParameterType(np.array([1]))
    for wrap in (plain, proper):
        run = wrap(echo(numbers))
        assert schema_util.is_schema_decorated(run)
        assert schema_util.get_input_schema(run)["example"] == {"data": [1]}
        assert isinstance(run(data=[1]), np.ndarray)
        assert isinstance(input_schema("data", numbers)(wrap(lambda data: data))(data=[1]), np.ndarray)


def test_a_closure_that_holds_itself_ends() -> None:
    """A recursive function, and one whose closure is not filled yet, are looked through once."""

    def outer() -> Callable[..., Any]:
        def run(data: Any) -> Any:
            return run(later)

        assert not schema_util.is_schema_decorated(run)
        later = 1
        return run

    assert not schema_util.is_schema_decorated(outer())


def test_methods_are_decorated_too() -> None:
    """The instance is no argument of the data."""

    class Model:
        @input_schema("data", NumpyParameterType(np.array([1])))
        def run(self, data: Any) -> Any:
            return data

    assert isinstance(Model().run(data=[1]), np.ndarray)
    assert isinstance(Model().run([1]), np.ndarray)
    assert schema_util.is_schema_decorated(Model().run)


@pytest.mark.parametrize("decorator", [output_schema, functools.partial(input_schema, "data")])
def test_a_description_is_needed(decorator: Callable[..., Any]) -> None:
    """A bare sample is refused where it stands."""
    with pytest.raises(TypeError, match="param_type must be a subclass of the AbstractParameterType"):
        decorator([1, 2])


@pytest.mark.parametrize(
    ("sample", "versions"),
    [
        ([1, 2], ["2.0", "3.0", "3.1"]),
        ([], ["2.0", "3.0", "3.1"]),
        ([1, "a"], ["3.0", "3.1"]),
        ([1, 2.5], ["3.0", "3.1"]),
        ([[1], [1, "a"]], ["3.0", "3.1"]),
        ({"a": {"b": [1, None]}}, ["3.0", "3.1"]),
        ([{"a": [1, "x"]}], ["2.0", "3.0", "3.1"]),
    ],
)
def test_lists_of_mixed_types_are_beyond_version_2(sample: Any, versions: list[str]) -> None:
    """Its arrays have one type of item; objects in arrays are not looked into, as in the real package."""
    assert standard(sample).supported_versions() == versions
    assert schema_util.get_supported_versions(echo(standard(sample))) == versions


@pytest.mark.parametrize("mixed", ["a", "b", "output"])
def test_versions_are_those_of_all_decorators(mixed: str) -> None:
    """One that version 2 cannot express is enough, wherever it stands."""
    samples = {name: [1, "x"] if name == mixed else [1] for name in ("a", "b", "output")}

    @input_schema("a", standard(samples["a"]))
    @output_schema(standard(samples["output"]))
    @input_schema("b", standard(samples["b"]))
    def run(a: Any, b: Any) -> None: ...

    assert schema_util.get_supported_versions(run) == ["3.0", "3.1"]


def test_conversion_can_be_turned_off() -> None:
    """The argument is described only."""
    run = echo(NumpyParameterType(np.array([1])), convert_to_provided_type=False)
    assert run(data=[1]) == [1]
    assert run(data="anything") == "anything"


@pytest.mark.parametrize("empty", [None, [], {}, "", 0, False])
def test_an_optional_argument_may_be_empty(empty: Any) -> None:
    """JSON's null and missing values are passed on; others are converted."""
    run = echo(standard({"k": 1}), optional=True)
    assert run(data=empty) is empty
    assert run(empty) is empty
    with pytest.raises(ValueError, match="Expected: <class 'dict'> but got <class 'list'>"):
        run(data=[1])
    array = np.array([])
    assert echo(NumpyParameterType(np.array([1])), optional=True)(data=array) is array


def test_an_argument_that_is_left_out_keeps_its_default() -> None:
    """Only given arguments are converted."""

    @input_schema("b", standard(1))
    @input_schema("a", standard(1))
    def run(a: Any, b: Any = "default") -> Any:
        return a, b

    assert run(a=1) == run(1) == (1, "default")
    with pytest.raises(ValueError, match="Expected: <class 'int'> but got <class 'str'>"):
        run(1, "text")


def test_a_name_that_the_function_does_not_have() -> None:
    """Each call says so, unless the argument is optional."""

    def run(data: Any) -> Any:
        return data

    with pytest.raises(RuntimeError, match='provided param_name "wrong" is not in the decorated function'):
        input_schema("wrong", standard(1))(run)(data=1)
    assert input_schema("wrong", standard(1), optional=True)(run)(data="x") == "x"


def test_exception_of_run_is_passed_on() -> None:
    """Only errors of conversion are explained; those of `run` are passed on."""

    @input_schema("data", standard(1))
    def run(data: Any) -> None:
        raise KeyError(data)

    with pytest.raises(KeyError):
        run(data=1)


def test_types_of_a_script_are_converted_by_themselves() -> None:
    """A value that has the type of the sample already is kept."""
    run = echo(Even(2))
    assert run(data="4") == 4
    assert run(data=3) == 3
    with pytest.raises(ValueError, match="odd"):
        run(data="5")
    with pytest.raises(ValueError, match=r"Invalid input for the 'data' parameter: int\(\) argument must be"):
        run(data=[])
    assert schema_util.get_input_schema(run)["example"] == {"data": "2"}


@pytest.mark.parametrize(
    ("sample", "schema"),
    [
        (3, {**INTEGER, "example": 3}),
        (1.5, {"type": "number", "format": "double", "example": 1.5}),
        ("x", {"type": "string", "example": "x"}),
        (True, {"type": "boolean", "example": True}),
        (b"ab", {"type": "string", "format": "byte", "example": "YWI="}),
        (bytearray(b"ab"), {"type": "string", "format": "byte", "example": "YWI="}),
        (dt.date(2026, 1, 2), {"type": "string", "format": "date", "example": "2026-01-02"}),
        (
            dt.datetime(2026, 1, 2, 3, 4, 5),
            {"type": "string", "format": "date-time", "example": "2026-01-02 03:04:05.000000 +0000"},
        ),
        (
            dt.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=ZONE),
            {"type": "string", "format": "date-time", "example": "2026-01-02 03:04:05.000006 +0200"},
        ),
        (dt.time(3, 4, 5), {"type": "string", "format": "time", "example": "03:04:05.000000 +0000"}),
        ([1, 2], {"type": "array", "items": INTEGER, "example": [1, 2]}),
        ((1, 2), {"type": "array", "items": INTEGER, "example": [1, 2]}),
        (range(2), {"type": "array", "items": INTEGER, "example": [0, 1]}),
        ([], {"type": "array", "items": OBJECT, "example": []}),
        ([1, "a"], {"type": "array", "items": {"type": "string"}, "example": [1, "a"]}),
        (
            {"a": {"b": [True]}, "n": None},
            {
                "type": "object",
                "required": ["a", "n"],
                "properties": {
                    "a": {
                        "type": "object",
                        "required": ["b"],
                        "properties": {"b": {"type": "array", "items": {"type": "boolean"}}},
                    },
                    "n": OBJECT,
                },
                "example": {"a": {"b": [True]}, "n": None},
            },
        ),
    ],
)
def test_schemas_of_plain_values(sample: Any, schema: dict[str, Any]) -> None:
    """By the exact type of the sample; a time without a zone is UTC."""
    assert standard(sample).input_to_swagger() == schema
    json.dumps(schema)


def test_samples_that_have_no_schema() -> None:
    """None says nothing, and what JSON cannot hold cannot be shown."""
    with pytest.raises(ValueError, match="Sample input cannot be None"):
        standard(None).input_to_swagger()
    with pytest.raises(
        TypeError, match=r"fully JSON serializable .* Actual error: Object of type set is not"
    ):
        input_schema("data", standard({1}))


@pytest.mark.parametrize(
    ("sample", "value", "expected"),
    [
        (1, 2, 2),
        (1, True, True),
        (1.5, 2, 2),
        (1.5, 2.5, 2.5),
        ("x", "y", "y"),
        (True, False, False),
        ([1], ["anything", 2], ["anything", 2]),
        ((1,), [2], [2]),
        ({"a": 1}, {"b": "other"}, {"b": "other"}),
        (b"ab", "YWI=", b"ab"),
        (bytearray(b"ab"), "YWI=", bytearray(b"ab")),
        (dt.date(2026, 1, 2), "2025-03-04", dt.date(2025, 3, 4)),
        (dt.datetime(2026, 1, 2), "2025-03-04T05:06:07", dt.datetime(2025, 3, 4, 5, 6, 7)),
        (
            dt.datetime(2026, 1, 2),
            "2025-03-04 05:06:07.5 +0200",
            dt.datetime(2025, 3, 4, 5, 6, 7, 500000, ZONE),
        ),
        (dt.datetime(2026, 1, 2), "2025-03-04T05:06:07Z", dt.datetime(2025, 3, 4, 5, 6, 7, tzinfo=dt.UTC)),
        (dt.time(1), "05:06:07.5", dt.time(5, 6, 7, 500000)),
        (dt.time(1), "05:06:07.000000 +0200", dt.time(5, 6, 7, tzinfo=ZONE)),
    ],
)
@pytest.mark.parametrize("dateutil", [True, False])
def test_plain_values_are_converted(
    sample: Any, value: Any, expected: Any, dateutil: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times and bytes come as text; everything else has its type. With python-dateutil and without it."""
    if not dateutil:
        monkeypatch.setitem(sys.modules, "dateutil.parser", None)
    got = echo(standard(sample))(data=value)
    assert (got, type(got)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("sample", "value"),
    [(1, 1.5), (1, "1"), (1.5, "1"), ("x", 1), (True, 1), ([1], {"a": 1}), ({"a": 1}, [1]), (1, None),
     (dt.date(2026, 1, 2), 5), (b"x", 5), (dt.datetime(2026, 1, 2), [1]), (range(2), [0, 1])],
)  # fmt: skip
def test_values_of_another_type_are_refused(sample: Any, value: Any) -> None:
    """With the words of the real package."""
    with pytest.raises(ValueError, match="Invalid input data type to parse") as refused:
        echo(standard(sample))(data=value)
    assert f"Expected: {type(sample)} but got {type(value)}" in str(refused.value)


@pytest.mark.parametrize(
    ("sample", "value"),
    [
        (dt.date(2026, 1, 2), "02.01.2026"),
        (b"x", "YQ"),
        (dt.datetime(2026, 1, 2), "text"),
        (dt.time(1), "text"),
    ],
)
@pytest.mark.parametrize("dateutil", [True, False])
def test_texts_that_say_nothing_are_refused(
    sample: Any, value: str, dateutil: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text that is no date, no time, no base64."""
    if not dateutil:
        monkeypatch.setitem(sys.modules, "dateutil.parser", None)
    with pytest.raises(ValueError, match=r"\S"):
        echo(standard(sample))(data=value)


def test_a_sample_of_a_time_is_a_valid_value() -> None:
    """The example of a schema can be sent."""
    for sample in (
        dt.date(2026, 1, 2),
        dt.datetime(2026, 1, 2, 3, tzinfo=ZONE),
        dt.time(3, tzinfo=ZONE),
        b"ab",
    ):
        assert echo(standard(sample))(data=standard(sample).input_to_swagger()["example"]) == sample


def test_members_of_a_dictionary_are_converted() -> None:
    """This holds at any depth of descriptions; undescribed and missing members are left alone."""
    inner = standard({"point": NumpyParameterType(np.array([1.0, 2.0]))})
    run = echo(
        standard({"image": NumpyParameterType(np.zeros((1, 2))), "in": inner, "k": standard(3), "plain": 5})
    )
    body = {"image": [[1, 2]], "in": {"point": [3, 4]}, "k": 4, "plain": "any", "more": None}
    got = run(data=body)
    assert got["image"].tolist() == [[1.0, 2.0]]
    assert got["in"]["point"].tolist() == [3.0, 4.0]
    assert (got["k"], got["plain"], got["more"]) == (4, "any", None)
    assert body["image"] == [[1, 2]], "the caller's value is not changed"
    assert run(data={}) == {}


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ({"image": [[1, 2, 3]]}, "array has size 3 on dimension #1, while expected value is 2"),
        ({"image": 5}, "expected an array of items"),
        ({"k": "x"}, "Expected: <class 'int'> but got <class 'str'>"),
        ([1], "Expected: <class 'dict'> but got <class 'list'>"),
    ],
)
def test_members_that_do_not_fit_are_refused(body: Any, complaint: str) -> None:
    """With the message of their own description."""
    run = echo(standard({"image": NumpyParameterType(np.zeros((1, 2))), "k": standard(3)}))
    with pytest.raises(ValueError, match=complaint):
        run(data=body)


def test_items_of_a_list_are_converted_by_the_first_description() -> None:
    """An array has one description for its items."""
    run = echo(standard([NumpyParameterType(np.array([1])), "ignored"]))
    first, second = run(data=[[1], [2, 3]])
    assert (first.tolist(), second.tolist()) == ([1], [2, 3])
    assert run(data=()) == []
    with pytest.raises(ValueError, match="Expected: <class 'list'> but got <class 'dict'>"):
        run(data={})


def test_schemas_of_described_values_are_nested() -> None:
    """In dictionaries, lists and plain values between them."""
    numbers = NumpyParameterType(np.array([1]))
    schema = standard({"deep": {"x": numbers}, "list": [numbers], "own": Even(2)}).input_to_swagger()
    array = {"type": "array", "items": INTEGER, "format": "numpy.ndarray"}
    assert schema["properties"] == {
        "deep": {"type": "object", "required": ["x"], "properties": {"x": array}},
        "list": {"type": "array", "items": array},
        "own": {"type": "string"},
    }
    assert schema["example"] == {"deep": {"x": [1]}, "list": [[1]], "own": "2"}
