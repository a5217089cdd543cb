"""Rings: which rows stay where more new rows than the capacity are written at once."""

import jax
import numpy as np
from attention_modules import built

import attnkernel as ak


def test_a_ring_keeps_the_last_rows_before_the_padding():
    module = built(ak.MultiheadAttention, 2, 4)
    after = jax.jit(lambda x: module.step(x, module.cache(4, ring=True), count=5)[1])
    assert sorted(np.asarray(after(np.ones((8, 4), np.float32)).rows.numbers)) == [1, 2, 3, 4]
