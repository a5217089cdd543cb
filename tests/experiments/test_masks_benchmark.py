"""The benchmark of masks: every example is timed, and agrees with `jax.nn` where that takes it."""

import numpy as np
import pytest

from experiments.benchmarks.masks import prior_of, share_of_blocks

TINY = ("length=64", "block=8", "heads=2", "dim=4", "repeats=1")
OTHERS = ["causal", "prefix", "documents", "ALiBi", "neighbourhood", "dilated window"]


@pytest.mark.slow
@pytest.mark.parametrize("examples", [["tiled neighbourhood", "soft cap"], OTHERS])
def test_each_example_is_timed_and_has_a_share_of_blocks(run_study, examples):
    table = run_study("bench_masks", *TINY, f"examples={examples}").summary["table"]
    assert [row["example"] for row in table] == examples
    for row in table:
        is_mask = row["example"] not in ("soft cap", "ALiBi")
        assert ("jax.nn" in row["median"]) == is_mask
        assert (row["blocks"] == 1.0) == (not is_mask)
        if is_mask:
            assert row["deviation"]["jax.nn"] < 1e-4


def test_shares_of_blocks():
    np.testing.assert_allclose(share_of_blocks(prior_of("causal", 64, 1), 64, 8), 36 / 64)
    window = share_of_blocks(prior_of("sliding window", 64, 1), 64, 8)
    np.testing.assert_allclose(window, 15 / 64)  # 4 keys before each query
    assert share_of_blocks(prior_of("ALiBi", 64, 2), 64, 8) == 1.0
