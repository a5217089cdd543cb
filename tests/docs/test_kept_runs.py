"""Kept runs, the source of the documentation's numbers: what `docs/keep.py` keeps names no path of
its machine. `test_published_numbers.py` compares kept runs with fresh ones."""

import json

import pytest
from paths import CONFIGS, DOCS, ROOT
from PIL import Image

from experiments.__main__ import main


def test_run_is_kept_without_the_paths_of_its_machine(load, tmp_path, monkeypatch):
    keep = load(DOCS / "keep.py")
    monkeypatch.setattr(keep, "DOCS", tmp_path / "docs")
    (tmp_path / "docs").mkdir()
    out = tmp_path / "run"
    config = str(CONFIGS / "data.yaml")
    assert main(["run", config, "seed=3", "--out", str(out), "--quiet"]) == 0
    meta = json.loads((out / "meta.json").read_text())
    meta["command"] = ["main", "run", config, "seed=3", "--out", str(out), "--quiet"]
    (out / "meta.json").write_text(json.dumps(meta))
    keep.keep(out, "an abacus")
    text = (tmp_path / "docs" / "summaries" / "data.json").read_text()
    kept = json.loads(text)
    assert kept["command"] == "python -m experiments run configs/data.yaml seed=3"
    assert kept["device"] == "an abacus"
    assert kept["summary"] == json.loads((out / "summary.json").read_text())
    assert str(tmp_path) not in text
    assert str(ROOT) not in text
    (figure,) = (tmp_path / "docs" / "gallery" / "data").glob("*.png")
    assert figure.stat().st_size <= keep.MAX_FIGURE_BYTES
    with Image.open(figure) as image:
        assert image.mode == "P"
    (out / "meta.json").write_text(json.dumps(meta | {"caches_programs": True}))
    with pytest.raises(SystemExit, match="may lack compilation"):
        keep.keep(out, None)
    status = {"state": "failed", "reason": "it was"}
    (out / "status.json").write_text(json.dumps(status))
    with pytest.raises(SystemExit, match="not a finished run"):
        keep.keep(out, None)
