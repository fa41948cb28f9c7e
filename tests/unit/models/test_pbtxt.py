"""Protobuf's text format as people and Triton write it."""

from __future__ import annotations

import pytest

from stoker.models.pbtxt import Identifier, PbtxtError, parse


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", {}),
        ("# only a comment", {}),
        ('name: "net"\nmax_batch_size:8', {"name": ["net"], "max_batch_size": [8]}),
        ("a: 1, b: 2; c: 3", {"a": [1], "b": [2], "c": [3]}),
        ("a: 1 a: 2", {"a": [1, 2]}),
        ("a: [1, -1, 0x1F, 017]", {"a": [1, -1, 31, 15]}),
        ("a: []", {"a": []}),
        ("a: 1.5 b: .5 c: 2. d: 1e3 e: 1.5f f: - 3 g: -inf", {"a": [1.5], "b": [0.5], "c": [2.0], "d": [1000.0],
                                                            "e": [1.5], "f": [-3], "g": [-float("inf")]}),
        ("input { name: 'x' }", {"input": [{"name": ["x"]}]}),
        ("input: < name: 'x' >", {"input": [{"name": ["x"]}]}),
        ("input [ { a: 1 }, { a: 2 } ] input { a: 3 }", {"input": [{"a": [1]}, {"a": [2]}, {"a": [3]}]}),
        ('m { key: "k" value: { string_value: "v" } }', {"m": [{"key": ["k"], "value": [{"string_value": ["v"]}]}]}),
        ("kind: KIND_CPU on: true", {"kind": ["KIND_CPU"], "on": ["true"]}),
        (r'''a: "one " 'two' # and
            "\x41\102\u00e9\U0001F600\n\\\"" ''', {"a": ['one two' + 'AB\u00e9\U0001f600\n\\"']}),
        (r'a: "\303\251"', {"a": ["\u00e9"]}),
        ('a: "# no comment"', {"a": ["# no comment"]}),
    ],
)  # fmt: skip
def test_every_form_of_the_format_is_read(text: str, message: object) -> None:
    """Colons are optional; lists, texts in pieces, escapes, comments and all numbers are read."""
    assert parse(text) == message


def test_names_are_not_texts() -> None:
    """`KIND_CPU` is the name of a value, `"KIND_CPU"` is a text."""
    message = parse('a: KIND_CPU b: "KIND_CPU"')
    assert [isinstance(message[field][0], Identifier) for field in ("a", "b")] == [True, False]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("name", "line 1, column 5: expected ':' or '{' behind name, the text ends"),
        ("a: 1\nb 2", "line 2, column 3: expected ':' or '{' behind b, got 2"),
        ("a: ", "line 1, column 4: expected a value, the text ends"),
        ("a: 1\n\n  }", "line 3, column 3: expected the name of a field, got }"),
        ("a { b: 1\n", "line 2, column 1: expected the name of a field or '}', the text ends"),
        ("a { b: 1 >", "line 1, column 10: expected the name of a field or '}', got >"),
        ("a: [1 2]", "line 1, column 7: expected ',' or ']', got 2"),
        ("a: [1,]", "line 1, column 7: expected a value, got ]"),
        ('a: "no end\n"', 'line 1, column 4: expected a value, got "'),
        ("a: 1x", "line 1, column 4: expected a value, got 1"),
        ("a: 09", "line 1, column 4: expected octal digits"),
        ("a: -x", "line 1, column 5: expected a value, got x"),
        (r'a: "\q"', r"line 1, column 4: \q is no escape"),
        (r'a: "\777"', r"line 1, column 4: \777 is no escape"),
        (r'a: "\xff"', "line 1, column 4: expected a text in UTF-8"),
        (r'a: "\ud800"', "line 1, column 4: expected a text in UTF-8"),
        ("a: 1 = 2", "line 1, column 6: expected the name of a field, got ="),
        ("a {" * 70, "line 1, column 196: messages are nested more than 64 deep"),
    ],
)
def test_malformed_texts_are_refused_with_their_place(text: str, problem: str) -> None:
    """The error has the line, the column, and the expected and the found text."""
    with pytest.raises(PbtxtError) as refused:
        parse(text)
    assert str(refused.value).startswith(problem)
