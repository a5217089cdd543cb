"""The README's numbers are those of committed summaries; these, and its figures, those of a fresh
run."""

import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.testing.compare import compare_images

from experiments.__main__ import main

ROOT = Path(__file__).parents[1]
SUMMARIES = ROOT / "docs" / "summaries"


def summary(name):
    """The numbers of the kept run of a config; `docs/keep.py` writes them."""
    return json.loads((SUMMARIES / f"{name}.json").read_text(encoding="utf-8"))["summary"]


def span(values, digits):
    return f"{min(values):.{digits}f} to {max(values):.{digits}f}"


def holdout(of):
    yield "ℓ = " + ", ".join(f"{fit['lengthscale']:.4f}" for fit in of["fits"])


def cps71(of):
    yield f"h = {of['lengthscale']:.4f}, CV = {of['criterion']:.6f}"


def mcycle(of):
    yield f"h = {of['lengthscale']:.6f}, CV = {of['criterion']:.4f}"


def in_context(of):
    yield span([row["learned/tuned"] for row in of["table"]], 2) + " of its error"


def induction(of):
    yield f"{100 * of['accuracy']:.0f} % where it repeats, bigrams {100 * of['bigrams']:.0f} %"


def seeds(of):
    error = {row["method"]: row["mean_error"] for row in of["methods"]}
    yield (
        f"{error['hold out 75']:.4f} for 75 held out, {error['hold out 10']:.4f} for 10, "
        f"{error['hold out 1']:.4f} for 1 and {error['hold out 120']:.4f} for 120"
    )
    yield f"which needs no choice, has {error['leave one out']:.4f}"
    over = {
        row["method"]: (row["mean_error_over_best"], row["standard_error_of_that"])
        for row in of["methods"]
        if "mean_error_over_best" in row
    }
    yield "(the paired difference is {:.4f} ± {:.4f}),".format(*over["hold out 75"])
    yield "{:.3f} ± {:.3f} better than drawing one".format(*over["hold out 1"])
    yield "{:.3f} ± {:.3f} better than 120".format(*over["hold out 120"])


def coverage(of):
    def shares(*methods):
        return [row["coverage"] for row in of["methods"] if row["method"] in methods]

    yield f"hold the mean at {span(shares('corrected'), 3)} of all x"
    yield f"everywhere at once in {span(shares('corrected, everywhere'), 3)} of the data sets"
    yield f"intervals hold {span(shares('conformal', 'conformal, local'), 3)} of new labels"
    yield f"hold {span(shares('naive'), 3)} and {span(shares('naive, everywhere'), 2)}"


def heteroskedastic(of):
    found = {
        (
            row["growth"],
            row["method"],
        ): f"{row['error_over_one_sd']:.3f} ± {row['standard_error']:.3f}"
        for row in of["methods"]
    }
    for growth, method in (
        (0.05, "reweighted"),
        (0.05, "likelihood"),
        (0.5, "reweighted"),
        (0.5, "likelihood"),
        (0.5, "true weights"),
    ):
        yield found[growth, method]


def bench_sweep(of):
    faster, longer = (target["worst"] for target in of["targets"][:2])
    yield f"{faster:.0f} × as fast, {longer:.1f} × as long as one member"


def bench_memory(of):
    most = of["table"][-1]
    yield f"{most['growth_mib']:.0f} MiB at n = 200 000"


SENTENCES = (
    holdout,
    cps71,
    mcycle,
    in_context,
    induction,
    seeds,
    coverage,
    heteroskedastic,
    bench_sweep,
    bench_memory,
)


@pytest.mark.parametrize("sentences", SENTENCES, ids=lambda of: of.__name__)
def test_the_readme_says_what_the_kept_run_found(sentences):
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    for sentence in sentences(summary(sentences.__name__)):
        assert sentence in text


def numbers(tree, place=""):
    """All numbers of a summary by their place, but those of time."""
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


@pytest.mark.parametrize("name", ["holdout", "cps71", "mcycle", "lengthscales", "seeds"])
def test_a_fresh_run_finds_what_the_kept_run_found(name, tmp_path):
    run = tmp_path / "run"
    config = str(ROOT / "configs" / f"{name}.yaml")
    assert main(["run", config, "--out", str(run), "--quiet"]) == 0
    fresh, kept = (numbers(json.loads((run / "summary.json").read_text())), numbers(summary(name)))
    assert fresh.keys() == kept.keys()
    assert len(fresh) > 5
    figure = ROOT / "docs" / "figures" / f"{name}.png"
    if figure.exists():  # pixel by pixel, with room for another version of the fonts
        fresh_one = str(run / "figures" / f"{name}.png")
        assert compare_images(str(figure), fresh_one, tol=3.0) is None
    for place, value in kept.items():
        np.testing.assert_allclose(fresh[place], value, rtol=2e-4, atol=1e-9, err_msg=place)
