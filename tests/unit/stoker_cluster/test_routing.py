"""The weights of versions, and HAProxy's configuration."""

import subprocess
from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.errors import InvalidSettings, OperatorError
from stoker_cluster.haproxy import find_haproxy
from stoker_cluster.router_settings import RouterSettings
from stoker_cluster.routing import Files, configuration, weight_map
from stoker_cluster.traffic_shares import WHOLE, effective_weights

NAMES = st.sampled_from(["a", "b", "c", "d"])


@given(st.dictionaries(NAMES, st.integers(0, WHOLE), min_size=1), st.data())
@settings(max_examples=50)
def test_weights_are_exact_or_refused(hundredths: dict[str, int], data: st.DataObject) -> None:
    """Each version has its percentage to the hundredth, the default one the rest, and the sum is 100."""
    default = data.draw(st.sampled_from([None, *hundredths]))
    traffic = {version: share / 100 for version, share in hundredths.items()}
    if sum(hundredths.values()) > WHOLE:
        with pytest.raises(InvalidSettings, match="adds up to"):
            effective_weights(traffic, default)
        return
    weights = effective_weights(traffic, default)
    leading = default or next(iter(traffic))
    assert sum(weights.values()) == WHOLE
    assert {version: weight for version, weight in weights.items() if version != leading} == {
        version: share for version, share in hundredths.items() if version != leading
    }


@given(st.decimals(0, 100, places=3), st.floats(0, 100))
@settings(max_examples=50)
def test_share_finer_than_a_hundredth_of_a_percent_is_refused(thousandths: Decimal, share: float) -> None:
    """A percentage is used exactly as it is written, or refused."""
    for number in (float(thousandths), share):
        exact = Decimal(str(number)) * 100
        if exact == int(exact):
            assert effective_weights({"a": 0, "b": number}, None)["b"] == exact
        else:
            with pytest.raises(InvalidSettings, match="two digits after the point"):
                effective_weights({"a": 0, "b": number}, None)


@pytest.mark.parametrize(
    ("traffic", "default", "words"),
    [
        ({}, None, "no versions"),
        ({"a": 10}, "b", "has no b, the default version"),
        ({"a": -1}, None, "from 0 to 100"),
        ({"a": float("nan")}, None, "from 0 to 100"),
        ({"a": 100.01}, None, "from 0 to 100"),
        ({"a": 60, "b": 40.01}, None, "adds up to 100.01 percent"),
    ],
)
def test_weights_that_cannot_be_are_refused(
    traffic: Mapping[str, float], default: str | None, words: str
) -> None:
    """The message says which, and what to do."""
    with pytest.raises(InvalidSettings, match=words):
        effective_weights(traffic, default)


@given(st.dictionaries(NAMES, st.integers(0, WHOLE // 4), min_size=1))
@settings(max_examples=30)
def test_ranges_give_each_version_as_many_numbers_as_its_weight(hundredths: dict[str, int]) -> None:
    """No number below the whole is left out or stands twice."""
    weights = effective_weights({name: share / 100 for name, share in hundredths.items()}, None)
    counted: Counter[str] = Counter()
    reached = 0
    for numbers, version in weight_map(weights):
        first, _, last = numbers.partition(":")
        assert int(first) == reached
        reached = int(last) + 1
        counted[version] = reached - int(first)
    assert reached == WHOLE
    assert counted == Counter({version: weight for version, weight in weights.items() if weight})


SETTINGS = {
    "plain": RouterSettings(servers={"": ("127.0.0.1:8080",)}),
    "queue": RouterSettings(
        servers={"": ()}, max_concurrent_requests=1, threads=2, retry_on=("conn-failure",)
    ),
    "versions": RouterSettings(service="models/digits", traffic={"a": 90.0, "b": 10.0}, host="*"),
    "ipv6": RouterSettings(service="models/digits", host="::1"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_haproxy_takes_the_configuration(tmp_path: Path, name: str) -> None:
    """Without a warning."""
    try:
        program = find_haproxy()
    except OperatorError as error:
        pytest.skip(str(error))
    for file in ("weights", "state"):
        (tmp_path / file).write_text("0:9999 a\n")
    files = Files(str(tmp_path / "control"), str(tmp_path / "weights"), str(tmp_path / "state"))
    (tmp_path / "haproxy.cfg").write_text(configuration(SETTINGS[name], files))
    done = subprocess.run(
        [program, "-c", "-f", str(tmp_path / "haproxy.cfg")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr


def test_configuration_has_the_settings() -> None:
    """They are limits, waits and repeats; the server's own timeout comes before the router's."""
    files = Files("control", "weights", "state")
    text = configuration(
        RouterSettings(servers={"": ("h:1",)}, timeout_ms=1500, max_queue_wait_ms=70, hold_s=20, port=81),
        files,
    )
    for line in (
        "bind 127.0.0.1:81",
        "timeout server 2500ms",
        "timeout queue 70ms",
        "retries 40",
        "retry-on conn-failure 503",
        "server hold 127.0.0.1:1 backup",
    ):
        assert f"  {line}\n" in text
    assert "azureml-model-deployment" not in text
    without = configuration(RouterSettings(servers={"": ("h:1",)}, retry_on=("conn-failure",)), files)
    for part in ("l7-retry", "http-buffer-request"):
        assert part in text
        assert part not in without
