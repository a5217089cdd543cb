"""The README's numbers are those of committed summaries; these, and its figures, those of a fresh
run."""

import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.testing.compare import compare_images

from experiments.__main__ import main

ROOT = Path(__file__).parents[2]
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


def scaling(of):
    (one,) = (row for row in of["table"] if (row["devices"], row["layout"]) == (1, "ring"))
    (eight,) = (row for row in of["table"] if (row["devices"], row["layout"]) == (8, "ring"))
    yield (f"{one['value_mib']:.0f} MiB on one device, {eight['value_mib']:.0f} on each of eight")


def peers(of):
    sides = {row["data"]: row["sides"] for row in of["rows"]}
    over = {name: of_data["attnkernel"]["over_best"] for name, of_data in sides.items()}
    assert over["cps71"] == 1.0
    most = max(over["ethanol"], over["wage1"])
    yield f"within {100 * (most - 1):.1f} % of it on ethanol and wage1"
    yield f"{100 * (over['faithful'] - 1):.1f} % on faithful"
    yield f"{100 * (over['geyser'] - 1):.0f} % on geyser"
    yield f"{100 * (over['mcycle'] - 1):.0f} % on mcycle"
    yield f"{100 * (over['ethanol E,C'] - 1):.0f} % on ethanol with two inputs"
    passes = {name: of_data["attnkernel passes"] for name, of_data in sides.items()}
    above = {name: 100 * (found["over_best"] - 1) for name, found in passes.items()}
    on_ethanol = above.pop("ethanol")
    yield f"within {max(above.values()):.1f} % of the least error on all but ethanol"
    yield f"({on_ethanol:.1f} %, half a standard error from one pass)"
    assert round(_errors(passes["ethanol"]), 1) == 0.5
    for name, of_data in sides.items():
        for side, found in of_data.items():
            if side != "attnkernel":
                better = -_errors(found)
                if (name, side) == ("mcycle", "Gaussian process"):
                    yield f"on mcycle the Gaussian process by {better:.1f}"
                elif (name, side) == ("mcycle", "attnkernel passes"):
                    yield f"our several passes by {better:.1f}"
                elif name == "ethanol E,C" and side.endswith(" ll"):
                    yield f"ethanol with two inputs local linear alone by {better:.1f}"
                else:
                    assert better < 1.5  # all others are luck
    least = [min(found, key=lambda side: found[side]["over_best"]) for found in sides.values()]
    assert least.count("Gaussian process") > len(least) / 2
    for side, words in (
        ("attnkernel", "takes {} s in one pass, and {:.2f} s for the 526 rows"),
        ("attnkernel passes", "in several passes {} s and {:.1f} s"),
        ("Gaussian process", "The Gaussian process takes {} s and {:.1f} s"),
        ("statsmodels ll", "local linear, {} s and {:.0f} s"),
    ):
        *small, wage1 = (found[side]["warm"] for found in sides.values())
        yield words.format(span(small, 1 if side.startswith("statsmodels") else 2), wage1)
    for side, words in (
        ("attnkernel", "a first time of {} s with compilation"),
        ("attnkernel passes", "the first time {} s"),
    ):
        yield words.format(span([found[side]["cold"] for found in sides.values()], 0))
    times = of["targets"][1]["values"]
    on_ethanol = times.pop("ethanol, statsmodels ll")
    yield f"takes {span(times.values(), 0)} times as long, on ethanol {on_ethanol:.0f} times"


def _errors(found):
    return found["mean_square_over_ours"] / found["standard_error_of_that"]


def bench_training(of):
    works, speedup = of["works"], of["speedup of all trainings"]

    def all_of(side):
        return sum(work["median"][side] for work in works)

    yield f"{all_of('ours, cold'):.1f} s against {all_of('post, cold'):.0f} s cold"
    yield f"{all_of('ours, warm'):.2f} s against {all_of('post, warm'):.0f} s warm"
    yield f"({speedup['cold']:.0f}×)"
    yield f"({speedup['warm']:.0f}×)"
    yield f"compiled steps, {speedup['warm, if the post kept its compiled steps']:.0f}×"


def bench_regression(of):
    rows = [row["giga_pairs_per_second"] for row in of["table"] if row["n"] == 10_000]

    def list_of(side, digits):
        *first, last = (f"{row[side]:.{digits}f}" for row in rows)
        return f"{', '.join(first)} and {last}"

    yield f"{list_of('attnkernel, Blockwise', 1)} · 10⁹ pairs a second in 1, 3, 8 and 32"
    yield f"KeOps {list_of('KeOps', 2)}; scikit-learn {span([r['scikit-learn'] for r in rows], 2)}"
    yield f"a bare sum of exponentials {span([row['bound'] for row in rows], 1)}"
    slope = next(t for t in of["targets"] if t["target"].startswith("value and gradient"))
    yield f"With all gradients it takes {span(slope['values'].values(), 1)} times as long"


def bench_attention(of):
    whole = {
        row["phase"]: row["median"]
        for row in of["table"]
        if (row["length"], row["causal"]) == (4096, False)
    }
    room = {
        (row["side"], row["phase"]): f"{row['growth_bytes'] / 2**20:.0f}"
        for row in of["memory"]
        if not row["causal"]
    }
    one, both = whole["forward"], whole["+ backward"]
    yield f"{one['attnkernel']:.2f} s forward, {both['attnkernel']:.2f} s with backward"
    yield f"jax.nn {one['jax.nn']:.2f} and {both['jax.nn']:.2f} s"
    yield f"PyTorch {one['PyTorch']:.2f} and {both['PyTorch']:.2f} s"
    yield "{} and {} MiB, where jax.nn takes {} and {}".format(
        *(room[side, phase] for side in ("attnkernel", "jax.nn") for phase in whole)
    )
    causal = [
        row["median"]["PyTorch"] / row["median"]["attnkernel"]
        for row in of["table"]
        if row["causal"]
    ]
    yield f"Causal, PyTorch takes {span(causal, 1)} of our time"


def bench_modules(of):
    rows = [row["median"] for row in of["table"] if row["length"] == 4096]

    def times(side):
        return span([row[side] / row["attnkernel"] for row in rows], 1)

    yield f"{times('Equinox')} × Equinox, {times('PyTorch')} × PyTorch"


def bench_selection(of):
    (row,) = (row for row in of["rows"] if (row["n"], row["dim"]) == (4000, 1))
    ours, theirs, jax = (
        row["sides"][s]["warm"] for s in ("attnkernel", "statsmodels", "kerneljax")
    )
    yield f"{ours:.2f} s, where statsmodels takes {theirs:.0f} s and kerneljax {jax:.0f}"
    (small,) = (row for row in of["small_samples"] if row["side"] == "attnkernel")
    yield f"{small['outside']} of {small['run']} outside their bounds"


def million(of):
    one, ten, two, three = of["fits"]
    r = [fit["R: dpill + locpoly"]["seconds"] for fit in (one, ten)]
    lengths = [f"{fit['lengthscale']:.4g}" for fit in (one, two, three, ten)]
    yield "ℓ = {}, {}, {}; {}".format(*lengths)
    yield f"{one['seconds']:.1f} s for the whole fit ({one['cold_seconds']:.0f} s the first time"
    yield f"KernSmooth takes {r[0]:.1f} s for a plug-in bandwidth on binned data"
    yield f"of ten million {ten['seconds']:.0f} s and {r[1]:.0f} s"
    yield f"in two dimensions {two['seconds']:.1f} s, in three {three['seconds']:.0f} s"


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
    scaling,
    peers,
    bench_training,
    bench_regression,
    bench_attention,
    bench_modules,
    bench_selection,
    million,
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
@pytest.mark.usefixtures("optimised")
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
