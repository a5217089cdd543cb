"""The benchmark of masks: every example is timed, and agrees with `jax.nn` where that takes it."""

import json

import numpy as np
import pytest

from experiments.__main__ import main
from experiments.benchmarks.masks import prior_of, share_of_blocks

TINY = "study: bench_masks\nlength: 64\nblock: 8\nheads: 2\ndim: 4\nrepeats: 1\nexamples: [{}]\n"


OTHERS = ["causal", "prefix", "documents", "ALiBi", "neighbourhood", "dilated window"]


@pytest.mark.slow
@pytest.mark.usefixtures("blank_figures")
@pytest.mark.parametrize("examples", [["tiled neighbourhood", "soft cap"], OTHERS])
def test_each_example_is_timed_and_has_a_share_of_blocks(tmp_path, examples):
    (tmp_path / "tiny.yaml").write_text(TINY.format(", ".join(examples)))
    out = tmp_path / "run"
    assert main(["run", str(tmp_path / "tiny.yaml"), "--out", str(out), "--quiet"]) == 0
    table = json.loads((out / "summary.json").read_text())["table"]
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
