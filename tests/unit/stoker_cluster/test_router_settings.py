"""The settings of a router."""

from typing import Any

import pytest

from stoker.errors import InvalidSettings
from stoker.settings.readers import read_settings
from stoker_cluster.router_settings import RouterSettings


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("a:1, b.c:65535,a:1", {"": ("a:1", "b.c:65535")}),
        (["[::1]:80"], {"": ("[::1]:80",)}),
        ([], {"": ()}),
        ({"a": ["h:1"], "b": "h:2,h:3"}, {"a": ("h:1",), "b": ("h:2", "h:3")}),
    ],
)
def test_servers_are_lists_or_lists_by_version(given: Any, read: dict[str, tuple[str, ...]]) -> None:
    """Each once; a list may be empty, as all servers may be gone."""
    assert read_settings(RouterSettings, {"servers": given}, "here") == {"servers": read}


@pytest.mark.parametrize("given", ["a", "a:0", "a:65536", "::1:80", "a b:1", {"A": ["h:1"]}, 5, [1]])
def test_value_that_is_no_server_is_refused(given: Any) -> None:
    """The message names the setting."""
    with pytest.raises(InvalidSettings, match="here: servers must"):
        read_settings(RouterSettings, {"servers": given}, "here")


@pytest.mark.parametrize(
    ("name", "value"), [("service", "a/b/c"), ("host", "a b"), ("retry_on", "502"), ("retry_on", [])]
)
def test_other_bad_values_are_refused(name: str, value: Any) -> None:
    """Before they could become lines of another program's configuration."""
    with pytest.raises(InvalidSettings, match=f"here: {name} must"):
        read_settings(RouterSettings, {name: value}, "here")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "there are no servers"),
        ({"servers": {"": ("h:1",)}, "service": "n/s"}, "leave one out"),
        ({"service": "n/s", "port": 9, "metrics_port": 9}, "choose two"),
        ({"service": "n/s", "default_version": "a"}, "give that too"),
        ({"servers": {"a": ("h:1",)}}, "say with traffic"),
        ({"servers": {"a": ("h:1",)}, "traffic": {"a": 1.0, "b": 2.0}}, "the same versions"),
    ],
)
def test_contradictions_are_refused(given: dict[str, Any], words: str) -> None:
    """One sentence says what to do."""
    with pytest.raises(InvalidSettings, match=words):
        RouterSettings(**given)
