"""Options of a call: deadline, tier, sequence."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.puppets import puppet_service
from tests.unit.gateway.rows.test_quotas import Frontends

from stoker.errors import RequestError
from stoker.gateway.rows.urgency import DEFAULT_URGENCY, Urgency
from stoker.gateway.scoring.call import Call
from stoker.gateway.scoring.call_options import CallOptions, read_call_options
from stoker.gateway.scoring.service_facts import Limits
from stoker.keys.callers import DEFAULT, CallerTerms
from stoker.sequence_steps import SequenceStep

MS = 1_000_000
ADS = CallerTerms("ads", 5, max_tier="high")


def call_of(options: CallOptions | None, urgency: Urgency | None = None) -> Call:
    """A call of this options, received at 0 by a service that waits a second."""
    service: Any = SimpleNamespace(limits=Limits(1000 * MS, 1000, urgency=urgency))
    call = Call(cast("Any", service), None, lambda *_: None, 0)
    if options is not None:
        options.apply_to(call)
    return call


@pytest.mark.parametrize(
    ("headers", "timeout_ms"),
    [
        ({b"x-request-timeout-ms": b"150"}, 150),
        ({b"x-request-timeout-ms": b"0.5"}, 0.5),
        ({b"x-request-timeout": b"0.15"}, 150),
        ({b"x-request-timeout": b"600"}, 600_000),
        ({b"x-request-timeout": b"601.0"}, 601_000),
        ({b"grpc-timeout": b"150m"}, 150),
        ({b"grpc-timeout": b"2S"}, 2000),
        ({b"grpc-timeout": b"7u"}, 0.007),
        ({b"x-request-timeout-ms": b"150", b"x-request-timeout": b"0.1"}, 100),
    ],
)
def test_a_deadline_has_three_spellings(headers: dict[bytes, bytes], timeout_ms: float) -> None:
    """Of several the earliest counts."""
    assert read_call_options(DEFAULT, headers) == CallOptions(DEFAULT, round(timeout_ms * MS))


@pytest.mark.parametrize(
    "headers",
    [
        {b"x-request-timeout-ms": b"soon"},
        {b"x-request-timeout-ms": b"-1"},
        {b"x-request-timeout": b"1000"},
        {b"x-request-timeout": b""},
        {b"grpc-timeout": b"150"},
        {b"grpc-timeout": b"1 S"},
        {b"stoker-tier": b"urgent"},
        {b"stoker-sequence": b""},
        {b"stoker-sequence": b"a b"},
        {b"stoker-sequence": b"7; begin"},
        {b"stoker-sequence": b"0; start"},
        {b"stoker-sequence": b"a" * 129},
    ],
)
def test_invalid_option_header_is_refused(headers: dict[bytes, bytes]) -> None:
    """Invalid headers are refused: 1000 may mean milliseconds, so it is not taken for seconds."""
    with pytest.raises(RequestError):
        read_call_options(DEFAULT, headers)


def test_headers_without_options_give_no_call_options() -> None:
    """Unrelated headers, such as those of browsers, set no options; a caller's name does."""
    assert read_call_options(DEFAULT, {b"priority": b"u=1", b"host": b"a"}) is None
    assert read_call_options(ADS, {}) == CallOptions(ADS)


def test_callers_deadline_is_limited_by_the_services() -> None:
    """A deadline only shortens the service's."""
    assert call_of(CallOptions(DEFAULT, 100 * MS)).deadline_ns == 100 * MS
    assert call_of(CallOptions(DEFAULT, 5000 * MS)).deadline_ns == 1000 * MS
    assert call_of(None).deadline_ns == 1000 * MS


@pytest.mark.parametrize(
    ("caller", "requested", "tier"),
    [(ADS, 0, 0), (ADS, 2, 2), (DEFAULT, 0, 1), (DEFAULT, 2, 2), (DEFAULT, 1, 1)],
)
def test_a_tier_is_lowered_to_the_highest_that_the_caller_may_ask_for(
    caller: CallerTerms, requested: int, tier: int
) -> None:
    """The answer names the tier of a request that chose one."""
    urgency = call_of(CallOptions(caller, tier=requested)).urgency
    assert urgency is not None
    assert urgency.tier == tier
    assert urgency.reports_tier


def test_unset_option_has_the_value_of_the_service() -> None:
    """A model's default tier is not its callers' wish, so it refuses no caller of a lower tier."""
    usual = Urgency(0, lasts_ns=50 * MS)
    urgency = call_of(CallOptions(ADS), usual).urgency
    assert urgency == Urgency(0, ADS, 50 * MS)
    assert call_of(None).urgency is None
    assert DEFAULT_URGENCY._replace(reports_tier=True).lines(200) == b"stoker-tier: normal\r\n"


def test_request_on_behalf_of_a_caller_uses_no_quota() -> None:
    """A copy of a caller's request keeps its share of the device and its name, and uses no limit."""
    limited = CallerTerms("ads", 5, weight=3.0, rows_per_s=1.0, device_ms_per_s=1.0)
    quota = Frontends().of(limited)
    group = DEFAULT_URGENCY._replace(shared=quota)
    for caller in (limited, DEFAULT):
        urgency = call_of(CallOptions(caller, tier=2, limited=False), group).urgency
        assert urgency is not None
        assert (urgency.quotas, urgency.tier, urgency.caller) == ((), 2, caller)


def test_a_target_counts_from_when_the_body_was_received() -> None:
    """And never lies behind the deadline."""
    assert call_of(None, Urgency(lasts_ns=50 * MS)).target_ns == 50 * MS
    assert call_of(CallOptions(DEFAULT, 20 * MS), Urgency(lasts_ns=50 * MS)).target_ns == 20 * MS
    assert call_of(CallOptions(DEFAULT, 20 * MS)).target_ns == 0


@pytest.mark.parametrize(
    ("headers", "options"),
    [
        ({b"x-envoy-expected-rq-timeout-ms": b"150"}, CallOptions(DEFAULT, 150 * MS)),
        ({b"x-envoy-expected-rq-timeout-ms": b"150", b"grpc-timeout": b"50m"}, CallOptions(DEFAULT, 50 * MS)),
        ({b"x-envoy-expected-rq-timeout-ms": b"0"}, None),
        ({b"x-envoy-expected-rq-timeout-ms": b"soon"}, None),
        ({b"x-gateway-inference-objective": b"Low"}, CallOptions(DEFAULT, tier=2)),
        ({b"x-gateway-inference-objective": b"high", b"stoker-tier": b"low"}, CallOptions(DEFAULT, tier=2)),
        ({b"x-gateway-inference-objective": b"chat-premium"}, None),
        ({b"x-gateway-inference-fairness-id": b"a"}, None),
    ],
)
def test_gateways_are_believed_where_they_are_trusted(
    headers: dict[bytes, bytes], options: CallOptions | None
) -> None:
    """A trusted gateway's deadline and tier count as the caller's; values that Stoker cannot read are ignored."""
    assert read_call_options(DEFAULT, headers, trusts_proxy=True) == options


@pytest.mark.parametrize("name", [b"x-envoy-expected-rq-timeout-ms", b"x-gateway-inference-objective"])
def test_others_are_not_believed(name: bytes) -> None:
    """Any caller can send these headers, so they are ignored without a gateway."""
    assert read_call_options(DEFAULT, {name: b"1"}) is None
    assert read_call_options(ADS, {name: b"low"}) == CallOptions(ADS)


@pytest.mark.parametrize(
    ("value", "step"),
    [
        (b"42", SequenceStep(42)),
        (b"42; start", SequenceStep(42, start=True)),
        (b"call-7;END", SequenceStep("call-7", end=True)),
        (b"a=b;start ; end", SequenceStep("a=b", start=True, end=True)),
        (b"18446744073709551616", SequenceStep("18446744073709551616")),
    ],
)
def test_header_names_the_sequence_of_a_request(value: bytes, step: SequenceStep) -> None:
    """It has the id, as a number where possible, and whether the request starts or ends the sequence."""
    options = read_call_options(DEFAULT, {b"stoker-sequence": value})
    assert options == CallOptions(DEFAULT, sequence=step)
    call = Call(puppet_service(), None, lambda *_: None, 0)
    options.apply_to(call)
    assert call.sequence == step
