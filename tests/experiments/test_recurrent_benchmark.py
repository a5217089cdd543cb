"""The benchmark of recurrent layers: every layer is timed, and its chunks agree with the scan."""

import pytest

TINY = ("length=[16]", "heads=2", "dim=4", "repeats=1")


@pytest.mark.slow
@pytest.mark.parametrize("layers", [["linear"], ["channel decay", "gated delta", "Mesa"]])
def test_each_layer_is_timed_in_chunks_and_by_a_scan(run_study, layers):
    table = run_study("bench_recurrent", *TINY, f"layers={layers}").summary["table"]
    assert [row["layer"] for row in table] == [layer for layer in layers for _ in range(2)]
    for row in table:
        assert set(row["median"]) == {"chunks", "scan", "softmax"}
        assert 0 < row["deviation"]["scan"] < 1e-5
