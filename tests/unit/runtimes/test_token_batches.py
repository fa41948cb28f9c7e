"""Batches of rows of tokens in parts of like length."""

import msgspec
import numpy as np
import pytest

from stoker.runtimes.token_batches import TokenCosts, padded_lengths

CHEAP_STARTS = TokenCosts(start_ns=0, token_ns=1, most_tokens=1 << 14, longest=512)


def parts_of(costs: TokenCosts, *lengths: int) -> list[tuple[list[int], int]]:
    """The lengths of the rows of each part, and its own."""
    array = np.array(lengths)
    return [(sorted(array[places].tolist()), tokens) for places, tokens in costs.divide(array)]


def test_padded_lengths_waste_little() -> None:
    """Buckets are no shorter than the row, and few."""
    assert len(np.unique(padded_lengths(np.arange(1, 2049)))) <= 72
    tokens = np.arange(1, 5000)
    padding = padded_lengths(tokens) - tokens
    assert ((padding >= 0) & (padding < np.maximum(4, tokens / 8))).all()


def test_divide_gives_each_row_to_one_part() -> None:
    """Lengths are random; a row without a token is in no part."""
    random = np.random.default_rng(3)
    for costs in (CHEAP_STARTS, TokenCosts(1e5, 10, 256, 512)):
        lengths = random.integers(0, 513, 200)
        places = np.concatenate([places for places, _ in costs.divide(lengths)])
        assert sorted(places.tolist()) == lengths.nonzero()[0].tolist()
        assert all(lengths[places].max() <= tokens <= 512 for places, tokens in costs.divide(lengths))


def test_divide_parts_by_length_if_starts_are_cheap() -> None:
    """Short rows are not computed at the length of a long one."""
    assert parts_of(CHEAP_STARTS, 500, 10, 12, 510, 9) == [([500, 510], 512), ([9, 10, 12], 12)]


def test_divide_joins_rows_if_starts_are_dear() -> None:
    """Where a start takes longer than the padding, there is one part."""
    assert parts_of(TokenCosts(1e6, 1, 1 << 14, 512), 30, 10, 100) == [([10, 30, 100], 104)]


def test_divide_keeps_to_the_most_tokens() -> None:
    """A row that alone has more runs alone."""
    costs = TokenCosts(1e6, 1, 128, 512)
    found = parts_of(costs, *[32] * 9, 300)
    assert [(len(rows), tokens) for rows, tokens in found] == [(1, 304), (4, 32), (4, 32), (1, 32)]


def test_divide_pads_no_row_beyond_the_longest() -> None:
    """A model whose limit is between two buckets is not asked for more tokens than it has positions."""
    assert parts_of(TokenCosts(0, 1, 1 << 14, 100), 100, 98) == [([98, 100], 100)]


def test_parts_have_the_length_of_their_longest_row_where_shapes_cost_nothing() -> None:
    """Lengths are not rounded up."""
    costs = msgspec.structs.replace(CHEAP_STARTS, rounds_up=False)
    assert parts_of(costs, 501, 10, 13, 511, 9, 13) == [
        ([511], 511), ([501], 501), ([13, 13], 13), ([10], 10), ([9], 9),
    ]  # fmt: skip
    assert parts_of(msgspec.structs.replace(costs, start_ns=1e6), 30, 11, 101) == [([11, 30, 101], 101)]


def test_divide_nothing() -> None:
    """Rows without tokens alone have no parts."""
    assert parts_of(CHEAP_STARTS, 0, 0) == []


@pytest.mark.parametrize("seed", [1, 2])
def test_divide_pads_less_than_a_tenth_of_real_spreads(seed: int) -> None:
    """Of batches of 64 rows with 16 to 512 tokens, less than 10 % is padding where a start costs 32 tokens."""
    random = np.random.default_rng(seed)
    costs = TokenCosts(32, 1, 1 << 14, 512)
    real = computed = 0
    for _ in range(20):
        lengths = np.clip(random.lognormal(4.4, 0.8, 64).astype(int), 16, 512)
        real += int(lengths.sum())
        computed += sum(len(places) * tokens for places, tokens in costs.divide(lengths))
    assert (computed - real) / computed < 0.1
