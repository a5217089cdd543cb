"""Sizes of padded data, and the copies that pad them."""

import jax
import numpy as np

from attnkernel._core.rows import (
    MAX_PADDED_ROWS,
    bucket_size,
    cut_rows,
    pad_rows,
)


def test_sizes_grow_by_a_sixteenth_at_most_from_256_rows():
    sizes = np.array([bucket_size(n) for n in range(1, MAX_PADDED_ROWS + 1)])
    given = np.arange(1, MAX_PADDED_ROWS + 1)
    assert np.all(sizes >= given)
    assert np.all(np.diff(sizes) >= 0)
    assert np.all(sizes - given < np.maximum(8, given / 16))
    assert len(np.unique(sizes)) == 112
    assert [bucket_size(n) for n in (0, MAX_PADDED_ROWS + 1)] == [0, MAX_PADDED_ROWS + 1]


def test_padding_repeats_the_last_row_with_weight_zero():
    given = (np.arange(6.0).reshape(3, 2), np.arange(3.0), np.array([1.0, 2.0, 3.0]))
    x, y, weights = jax.device_put(given)
    more_x, more_y, mask = map(np.asarray, pad_rows(x, y, None))
    assert more_x.shape == (8, 2)
    assert more_y.shape == mask.shape == (8,)
    np.testing.assert_array_equal(more_x[3:], np.broadcast_to(given[0][-1], (5, 2)))
    np.testing.assert_array_equal(mask, np.arange(8) < 3)
    padded = np.asarray(pad_rows(x, y, weights)[2])
    np.testing.assert_array_equal(padded[:4], [1.0, 2.0, 3.0, 0.0])
    np.testing.assert_array_equal(cut_rows({"y": pad_rows(x, y, None, y)[3]}, 3)["y"], y)
    np.testing.assert_array_equal(cut_rows(y, 5), y)
