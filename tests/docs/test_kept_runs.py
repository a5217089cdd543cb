"""Kept runs, the source of the documentation's numbers: a fresh run finds the same ones, and what
`docs/keep.py` keeps names no path of its machine."""

import json

import numpy as np
import pytest
from matplotlib.testing.compare import compare_images
from paths import CONFIGS, DOCS, ROOT
from PIL import Image

from experiments.__main__ import main


def numbers(tree, place=""):
    """All numbers of a summary by their place, except those of time."""
    if isinstance(tree, dict):
        return {
            at: value
            for key, inner in tree.items()
            if key not in ("seconds", "starts")
            for at, value in numbers(inner, f"{place}.{key}").items()
        }
    if isinstance(tree, list):
        return {
            at: value
            for i, inner in enumerate(tree)
            for at, value in numbers(inner, f"{place}[{i}]").items()
        }
    return {place: tree} if isinstance(tree, int | float) and not isinstance(tree, bool) else {}


@pytest.mark.parametrize(
    "name",
    [
        "holdout",  # the figure and the numbers of README.md
        "cps71",
        "mcycle",
        "lengthscales",
        "seeds",
    ],
)
@pytest.mark.slow
@pytest.mark.usefixtures("optimised")
def test_fresh_run_equals_kept_run(name, tmp_path):
    run = tmp_path / "run"
    assert main(["run", str(CONFIGS / f"{name}.yaml"), "--out", str(run), "--quiet"]) == 0
    fresh = numbers(json.loads((run / "summary.json").read_text()))
    kept = json.loads((DOCS / "summaries" / f"{name}.json").read_text(encoding="utf-8"))
    kept = numbers(kept["summary"])
    assert fresh.keys() == kept.keys()
    assert len(fresh) > 5
    figure = DOCS / "figures" / f"{name}.png"
    if figure.exists():  # pixel by pixel, with room for another version of the fonts
        fresh_one = str(run / "figures" / f"{name}.png")
        assert compare_images(str(figure), fresh_one, tol=3.0) is None
    for place, value in kept.items():
        np.testing.assert_allclose(fresh[place], value, rtol=2e-4, atol=1e-9, err_msg=place)


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
