"""The benchmark of recurrent layers: every layer is timed, and its chunks agree with the scan."""

import json

import pytest

from experiments.__main__ import main

TINY = "study: bench_recurrent\nlength: [16]\nlayers: [{}]\nheads: 2\ndim: 4\nrepeats: 1\n"


@pytest.mark.slow
@pytest.mark.usefixtures("blank_figures")
@pytest.mark.parametrize("layers", [["linear"], ["channel decay", "gated delta", "Mesa"]])
def test_each_layer_is_timed_in_chunks_and_by_a_scan(tmp_path, layers):
    (tmp_path / "tiny.yaml").write_text(TINY.format(", ".join(layers)))
    out = tmp_path / "run"
    assert main(["run", str(tmp_path / "tiny.yaml"), "--out", str(out), "--quiet"]) == 0
    table = json.loads((out / "summary.json").read_text())["table"]
    assert [row["layer"] for row in table] == [layer for layer in layers for _ in range(2)]
    for row in table:
        assert set(row["median"]) == {"chunks", "scan", "softmax"}
        assert 0 < row["deviation"]["scan"] < 1e-5
