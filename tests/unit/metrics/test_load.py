"""The load of a server, for those that add and remove servers."""

import pytest
from tests.puppets import SecondsClock, metric_memory

from stoker.metrics.layout import FIRST_DEVICE_PAGE
from stoker.metrics.load import Load, LoadMeter, load_of_all
from stoker.metrics.memory import MetricMemory

SLOT = 3
MS = 1_000_000


@pytest.fixture
def memory() -> MetricMemory:
    return metric_memory()


@pytest.fixture
def clock() -> SecondsClock:
    return SecondsClock()


def capacity(memory: MetricMemory) -> float:
    return float(memory.capacities_rows_s()[SLOT])


def test_model_without_batches_has_no_capacity(memory: MetricMemory) -> None:
    """Other models beside it do not change that."""
    memory.page(FIRST_DEVICE_PAGE).model(SLOT).set_batch_cap_rows(256)
    other = memory.page(FIRST_DEVICE_PAGE).model(SLOT + 1)
    other.set_batch_cap_rows(256)
    other.learn_batch_time(256, MS)
    assert capacity(memory) == 0


@pytest.mark.parametrize(
    ("cap_rows", "times_ms", "rows_s"),
    [
        (256, {1: 1, 256: 10}, 25_600),
        # 200 to a batch, though 130 were in the latest.
        (200, {130: 10}, 20_000),
        # The largest so far had 64 to 127 rows, at least 64.
        (256, {1: 1, 100: 10}, 6_400),
        # Batches of 256 have once run, but do not fit any more.
        (128, {128: 10, 256: 1}, 12_800),
        (1, {1: 4}, 250),
        (65_536, {65_536: 1000}, 65_536),
    ],
)
def test_the_capacity_is_that_of_full_batches(
    memory: MetricMemory, cap_rows: int, times_ms: dict[int, int], rows_s: float
) -> None:
    """Rows of the largest batch by its learned time; of smaller ones, the fewest rows that those may have had."""
    device = memory.page(FIRST_DEVICE_PAGE).model(SLOT)
    device.set_batch_cap_rows(cap_rows)
    for rows, time_ms in times_ms.items():
        device.learn_batch_time(rows, time_ms * MS)
    assert capacity(memory) == pytest.approx(rows_s)


def test_replicas_add_up(memory: MetricMemory) -> None:
    """Each device process knows its own time; a frontend's page has none."""
    for page, time_ms in ((FIRST_DEVICE_PAGE, 10), (FIRST_DEVICE_PAGE + 1, 40)):
        device = memory.page(page).model(SLOT)
        device.set_batch_cap_rows(256)
        device.learn_batch_time(256, time_ms * MS)
    memory.page(0).model(SLOT).note_scored(1, 1, 1)
    assert capacity(memory) == 25_600 + 6_400


def test_mean_time_of_batches_follows_changes(memory: MetricMemory) -> None:
    """A mean in which the latest has a fifth, begun with the first; a new process begins anew."""
    device = memory.page(FIRST_DEVICE_PAGE).model(SLOT)
    device.set_batch_cap_rows(256)
    device.learn_batch_time(256, 10 * MS)
    device.learn_batch_time(256, 20 * MS)
    assert capacity(memory) == pytest.approx(256 / 0.012)
    for _ in range(60):
        device.learn_batch_time(256, 20 * MS)
    assert capacity(memory) == pytest.approx(256 / 0.020, rel=1e-4)
    device.clear_gauges()
    device.set_batch_cap_rows(256)
    assert capacity(memory) == 0


def busy(memory: MetricMemory, seconds: float = 1.0) -> None:
    """A device that does 100 rows in a second, in one batch of this time."""
    device = memory.page(FIRST_DEVICE_PAGE).model(SLOT)
    device.set_batch_cap_rows(int(100 * seconds))
    device.learn_batch_time(int(100 * seconds), int(seconds * 1000) * MS)


def test_load_is_arrivals_over_capacity(memory: MetricMemory, clock: SecondsClock) -> None:
    """A device that is always at work, but with small batches, has little to do."""
    busy(memory)
    meter = LoadMeter(memory, clock)
    device = memory.page(FIRST_DEVICE_PAGE).model(SLOT)
    for _ in range(5):
        device.observe_batch(1, "idle", 200 * MS)
    clock.now_s += 1
    assert meter.read([SLOT]) == {SLOT: Load(pytest.approx(0.05), pytest.approx(100))}


def test_rows_count_when_they_come(memory: MetricMemory, clock: SecondsClock) -> None:
    """Rows in flight have arrived and count once; refused ones have arrived too; waiting ones are work besides."""
    busy(memory)
    meter = LoadMeter(memory, clock)
    frontend, device = memory.page(0).model(SLOT), memory.page(FIRST_DEVICE_PAGE).model(SLOT)
    device.observe_batch(100, "full", 1000 * MS)
    for _ in range(25):
        frontend.count_scored(1, 4)
    frontend.set_in_flight_rows(60)
    for _ in range(10):
        frontend.count_rejection("overloaded")
    clock.now_s += 1
    # 100 rows are done, 60 there, and ten requests of four were refused.
    assert meter.read([SLOT])[SLOT] == Load(pytest.approx(2.0), pytest.approx(100), 10, rows=60)
    device.set_queued_rows(50)
    clock.now_s += 1
    assert meter.read([SLOT])[SLOT].ratio == pytest.approx(0.5), "nothing new has come"
    device.set_queued_rows(0)
    device.observe_batch(60, "idle", 600 * MS)
    frontend.set_in_flight_rows(0)
    clock.now_s += 1
    assert meter.read([SLOT])[SLOT].ratio == 0


def test_readers_see_the_same_span(memory: MetricMemory, clock: SecondsClock) -> None:
    """A second reader right after the first sees the same rows: a reading covers half a second."""
    busy(memory)
    meter = LoadMeter(memory, clock)
    device = memory.page(FIRST_DEVICE_PAGE).model(SLOT)
    clock.now_s += 1
    meter.read([SLOT])
    for _ in range(20):
        clock.now_s += 0.05
        device.observe_batch(5, "idle", MS)
        meter.read([SLOT])
    assert meter.read([SLOT])[SLOT].ratio == pytest.approx(1.0, rel=0.2)
    clock.now_s += 10
    assert meter.read([SLOT])[SLOT].ratio < 0.1


def test_load_without_a_measured_span_is_zero(memory: MetricMemory, clock: SecondsClock) -> None:
    """A first reading and counters that were reset give a load of zero."""
    busy(memory)
    frontend, device = memory.page(0).model(SLOT), memory.page(FIRST_DEVICE_PAGE).model(SLOT)
    device.observe_batch(1000, "full", MS)
    frontend.count_rejection("overloaded")
    meter = LoadMeter(memory, clock)
    assert meter.read([SLOT])[SLOT].ratio == 0
    memory.clear_model(SLOT)
    busy(memory)
    clock.now_s += 1
    assert meter.read([SLOT])[SLOT].ratio == 0


def test_an_unknown_model_is_busy_or_not(memory: MetricMemory, clock: SecondsClock) -> None:
    """Until its first batch has ended, rows in flight decide."""
    meter = LoadMeter(memory, clock)
    clock.now_s += 1
    assert meter.read([SLOT])[SLOT] == Load(0.0, 0.0)
    memory.page(1).model(SLOT).set_in_flight_rows(3)
    assert meter.read([SLOT])[SLOT] == Load(1.0, 0.0, rows=3)


def test_with_a_limit_the_load_is_of_requests(memory: MetricMemory, clock: SecondsClock) -> None:
    """As on Azure: those that are admitted and those that wait, of all frontends, by what those admit at once."""
    busy(memory)
    meter = LoadMeter(memory, clock)
    memory.page(0).model(SLOT).set_held_requests(2, 2)
    memory.page(1).model(SLOT).set_held_requests(5, 2)
    memory.page(FIRST_DEVICE_PAGE).model(SLOT).observe_batch(90, "idle", MS)
    clock.now_s += 1
    assert meter.read([SLOT])[SLOT] == Load(pytest.approx(7 / 4), pytest.approx(100), limited=True)


def test_models_share_devices_but_not_limits() -> None:
    """Loads of rows add up; a model at its limit counts as full, with any loads of the others."""
    rows = {1: Load(0.25, 10.0), 2: Load(0.5, 10.0)}
    assert load_of_all(rows) == 0.75
    assert load_of_all(rows | {3: Load(0.5, 10.0, limited=True)}) == 0.75
    assert load_of_all(rows | {3: Load(1.5, 10.0, limited=True)}) == 1.5
    assert load_of_all({}) == 0


def test_a_meter_of_one_slot_reads_the_same(memory: MetricMemory, clock: SecondsClock) -> None:
    """Reading one model alone gives the same load as reading it among all."""
    meters = [LoadMeter(memory, clock), LoadMeter(memory, clock, slot=SLOT)]
    busy(memory)
    busy(memory, 0.5)
    memory.page(1).model(SLOT).set_in_flight_rows(3)
    memory.page(2).model(SLOT).set_in_flight_rows(4)
    memory.page(2).model(SLOT + 1).set_in_flight_rows(50)
    clock.now_s += 1
    among_all, alone = (meter.read([SLOT]) for meter in meters)
    assert alone == among_all
    assert alone[SLOT].rows == 7
