"""Split counts that fill a device."""

from hypothesis import given
from hypothesis import strategies as st

from kernel_zoo.kernels._tiles import WAVES, filling_splits


@given(st.integers(1, 1 << 16), st.integers(0, 64), st.integers(1, 200), st.sampled_from([1.0, 3.0, 4.0]))
def test_counts_are_few_ordered_and_in_bounds(tiles_total, most, sm_count, waves):
    found = filling_splits(tiles_total, most, sm_count, waves)
    assert found == tuple(sorted(set(found)))
    assert all(2 <= count <= most and count * tiles_total <= waves * sm_count for count in found)
    assert len(found) <= 11


@given(st.integers(1, 66), st.integers(2, 64), st.integers(4, 200))
def test_a_full_wave_is_proposed_where_it_can_be_reached(tiles_total, most, sm_count):
    exact = sm_count // tiles_total
    found = filling_splits(tiles_total, most, sm_count)
    if 2 <= exact <= most:
        assert exact in found
    elif exact > most:  # too few tiles: as many parts as there may be, and fewer
        assert found[-1] == most
        assert len(found) >= min(2, most - 1)


@given(st.integers(1, 1 << 10), st.integers(1, 200))
def test_a_count_is_the_largest_that_begins_no_further_part_of_a_wave(tiles_total, sm_count):
    for count in filling_splits(tiles_total, 1 << 20, sm_count):
        assert any(count * tiles_total <= share * sm_count < (count + 1) * tiles_total for share in WAVES)


def test_eighteen_tiles_take_seven_parts():
    """A fixed list of counts has 6 and 8: 108 programs on 132 SMs, or a second wave of 12."""
    assert filling_splits(18, 64, 132) == (3, 5, 7, 11, 14, 22, 29)
    assert filling_splits(264, 64, 132) == (2,)
    assert filling_splits(320, 64, 132) == ()
    assert filling_splits(1, 16, 132) == (4, 8, 12, 16)
