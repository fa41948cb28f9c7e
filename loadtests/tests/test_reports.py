"""Reports of the bench."""

import orjson
import pytest

from stoker_bench.benches.bench import _case_bounds
from stoker_bench.contestants.baselines import BARE, HANDWRITTEN, STARLETTE
from stoker_bench.contestants.contest import Case, Slice
from stoker_bench.contestants.offline import NAME_PREFIX
from stoker_bench.reports import Bound, CaseResult, Report, aligned, figure


def make_slice(rows_per_s: float, **figures: float) -> Slice:
    """Return a slice with a CPU time and a median latency that follow from the rate."""
    known = {"p50_ms": 1000 / rows_per_s, "cpu_us_per_request": 1e6 / rows_per_s, "errors": 0, **figures}
    return Slice(rows_per_s, rows_per_s, int(known.pop("errors")), **known)


def case_result(case: Case, stoker: Slice, **baselines: Slice) -> CaseResult:
    """Return a case with one round."""
    names = {"bare": BARE, "starlette": STARLETTE, "handwritten": HANDWRITTEN}
    slices = {"Stoker": [stoker]}
    slices |= {names.get(name, name): [baseline] for name, baseline in baselines.items()}
    return CaseResult(case, (5410,), slices, pss_bytes={"Stoker": 80_000_000})


def bounds(report: Report) -> dict[str, bool]:
    """Return whether each bound was met, by the beginning of its text."""
    return {bound.text: bound.met for bound in report.bounds()}


def report_of(*cases: CaseResult) -> Report:
    """Return a report of cases."""
    return Report("own generator", 3, 1, "MLP", _case_bounds, list(cases))


def test_bounds_hold_at_their_limits() -> None:
    """Exactly 0.9, 1.3 and 3 times the baselines is enough; the mean batch must exceed 4."""
    case = case_result(
        Case(64),
        make_slice(9000, mean_batch_rows=4.1),
        bare=make_slice(10_000),
        starlette=make_slice(6900),
        handwritten=make_slice(3000),
    )
    met = bounds(report_of(case))
    assert met == {
        f"requests/s over {BARE} ≥ 0.9 at 64 connections, 1 row a request": True,
        f"requests/s over {STARLETTE} ≥ 1.3 at 64 connections, 1 row a request": True,
        f"requests/s over {HANDWRITTEN} ≥ 3 at 64 connections, 1 row a request": True,
        f"CPU per request over {BARE} ≤ 1.1 at 64 connections, 1 row a request": False,
        "mean batch > 4 at 64 connections, 1 row a request": True,
    }


def test_missed_bounds_are_marked() -> None:
    """A slow single caller and slow large requests are NOT MET in words."""
    single = case_result(Case(1), make_slice(1000), bare=make_slice(2100))
    large = case_result(Case(4, 256), make_slice(790))
    large.slices[f"{NAME_PREFIX}, default threads"] = [make_slice(1000)]
    report = report_of(single, large)
    assert list(bounds(report).values()) == [False, False]
    assert str(report).count("NOT MET") == 2
    assert "p50 over bare ASGI constant ≤ 2 at 1 connection, 1 row a request: 2.10" in str(report)


def test_without_baselines_there_are_no_ratios() -> None:
    """Stoker alone gives a table of figures, and only the bound that needs no baseline."""
    report = report_of(case_result(Case(64), make_slice(9000, mean_batch_rows=30)))
    assert list(bounds(report)) == ["mean batch > 4 at 64 connections, 1 row a request"]
    assert "Stoker over" not in str(report)


def test_failed_requests_are_noted_below_the_table() -> None:
    """A case with errors says whose and how many, for its figures mislead."""
    text = str(report_of(case_result(Case(64), make_slice(9000, errors=12), bare=make_slice(10_000))))
    assert "Stoker: 12 failed requests, so its figures do not count." in text
    assert f"{BARE}: " not in text


def test_bounds_of_the_whole_run_follow_those_of_its_cases() -> None:
    """Such as the weight of a frontend."""
    report = report_of()
    report.further_bounds += [Bound("resident MB < 80", 81, met=False)]
    assert bounds(report) == {"resident MB < 80": False}
    assert "NOT MET  resident MB < 80: 81.0" in str(report)


def test_json_holds_slices_and_ratios() -> None:
    """The document is plain JSON with every slice and Stoker's ratio to every baseline."""
    report = report_of(case_result(Case(64), make_slice(9000), bare=make_slice(10_000)))
    document = orjson.loads(orjson.dumps(report.as_json()))
    case = document["cases"][0]
    assert case["case"] == {"subject": "", "connections": 64, "rows": 1, "body_bytes": [5410]}
    assert case["contestants"]["Stoker"]["slices"][0]["requests_per_s"] == 9000
    assert case["first_over"][BARE]["rows_per_s"] == pytest.approx(0.9)
    assert document["generator"] == "own generator"
    assert document["machine"]["cores"] >= 1


def test_cases_name_their_subject_sizes_and_first_contestant() -> None:
    """Where one report has several subjects and forms of bodies, the tables tell them apart."""
    slices = {"merge": [make_slice(800)], "none": [make_slice(100)]}
    text = str(CaseResult(Case(64), (3280, 5410), slices, {}, subject="ONNX script"))
    assert "ONNX script: 64 connections, 1 row a request (3,280 or 5,410 bytes)" in text
    assert "merge over" in text
    assert "8.00" in text


def test_all_contestants_are_compared_with_a_yardstick() -> None:
    """The ratios are taken within each round: a slow clock moves both."""
    slices = {"a": [500, 510], "b": [900, 880], HANDWRITTEN: [100, 300]}
    taken = {name: [make_slice(rate) for rate in rates] for name, rates in slices.items()}
    result = CaseResult(Case(64), (5410,), taken, {}, yardstick=HANDWRITTEN)
    assert {name: ratios["rows_per_s"] for name, ratios in result.ratios().items()} == {
        "a": pytest.approx((5 + 1.7) / 2),
        "b": pytest.approx((9 + 880 / 300) / 2),
    }
    assert f"over {HANDWRITTEN}" in str(result)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0.123, "0.12"), (9.87, "9.87"), (12.34, "12.3"), (123.4, "123"), (42_310.2, "42,310")],
)
def test_figures_have_three_digits_or_so(value: float | None, text: str) -> None:
    """Small figures keep decimals, large ones are grouped, unknown ones are a dash."""
    assert figure(value) == text


def test_aligned_columns() -> None:
    """Names stand left, figures right, and no line has trailing spaces."""
    table = aligned(["", "requests/s"], [["bare", "42,310"], ["hand-written", "8,800"]])
    assert table.splitlines() == [
        "              requests/s",
        "------------  ----------",
        "bare              42,310",
        "hand-written       8,800",
    ]
