"""Every public callable with every argument misused: a sentence that names the argument, or none.

Run alone, `PYTHONPATH=tests/shared python -m misuse`, it prints a table: for each callable,
how many calls raised a sentence, raised something else, or returned.
"""

import importlib
import inspect
import warnings

import marks
import matplotlib.pyplot as plt
import pytest
from misuse.kinds import KINDS
from misuse.legal import EXCLUDED, LEAST_SHARE, UNNAMED
from misuse.values import AX, made, now
from misuse.verdict import CALLABLES, verdicts

import attnkernel as ak

MODULES = (
    "",
    *(".data", ".kernels", ".priors", ".rules", ".methods", ".attention", ".nn", ".models"),
    *(".families", ".losses", ".recurrent"),
    *(".objectives", ".fitting", ".inference", ".plot", ".sklearn"),
)


def public_names() -> set[str]:
    """Every public class and function, by the shortest name that it has."""
    found: dict[int, str] = {}
    for module in MODULES:
        of_module = vars(importlib.import_module(f"attnkernel{module}"))
        for name, value in of_module.items():
            ours = str(getattr(value, "__module__", "")).startswith("attnkernel")
            if not name.startswith("_") and callable(value) and ours:
                found.setdefault(id(value), f"{module}.{name}".lstrip("."))
    return set(found.values())


SLOW = {
    "plot.fit",
    "Fit.__call__",
    "noise_variance",
    "fit",
    "fit_many",
    "bands",
    "bands, simultaneous",
    "choose",
    "conformal, split",
    "density",
    "HoldOut",
    "MeanVarianceRegression.__call__",
    "MultiheadAttention",
    "MultiheadAttention.__call__",
    "BiasReduced.__call__",
    "MultiheadKernelRegression.__call__",
    "plot.criterion",
    "plot.partial",
    "plug_in",
    "sklearn.KernelClassifier",
    "sklearn.KernelRegressor",
}


@pytest.mark.parametrize("name", [marks.slow(name) if name in SLOW else name for name in CALLABLES])
def test_misuse_is_answered_by_a_sentence_that_names_the_argument(as_users_run_it, name):
    found = verdicts(name)
    assert [verdict for verdict in found if verdict.what == "silent"] == []
    others = [verdict for verdict in found if verdict.what == "other error"]
    assert [one for one in others if (one.name, one.argument, one.misuse) not in UNNAMED] == []


WITHOUT_RESULT = {"plot.interact", "save"}


@pytest.mark.parametrize("name", [marks.slow(name) if name in SLOW else name for name in CALLABLES])
def test_the_call_that_is_misused_is_itself_valid(as_users_run_it, name):
    """It returns: else every misuse of it would pass for a reason of its own."""
    function, arguments = CALLABLES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ak.FitWarning)
        found = function(**{argument: now(valid) for argument, (_, valid) in arguments.items()})
    assert (found is None) == (name in WITHOUT_RESULT)
    plt.close("all")
    made.pop(AX.make, None)


def test_every_public_callable_is_misused_or_excluded():
    short = {name.rpartition(".")[2] for name in public_names()}
    excluded = {name for names in EXCLUDED.values() for name in names.split()}
    known = set(CALLABLES) | excluded
    of_packages = tuple(f"{module[1:]}." for module in MODULES[1:])
    missing = {
        name
        for name in public_names() - known
        if not (name.startswith(of_packages) and name.rpartition(".")[2] in known)
    }
    assert missing == set()
    assert {name.rpartition(".")[2] for name in excluded} <= short


def test_every_argument_of_a_callable_is_misused():
    left_out = {}
    for name, (function, _) in CALLABLES.items():
        expected = set(inspect.signature(function).parameters)
        if "given" in expected or "parameters" in expected:  # a call of what is made first
            continue
        of_variants = {
            argument
            for other, (same, more) in CALLABLES.items()
            if same is function or other.startswith(f"{name} ")
            for argument in more
        }
        if missing := expected - of_variants - {"options", "sliders"}:
            left_out[name] = missing
    assert left_out == {}


def test_few_errors_are_no_sentences():
    calls = sum(
        len(wrong(now(valid)) if callable(wrong := KINDS[kind.rstrip("?")]) else wrong)
        for _, arguments in CALLABLES.values()
        for kind, valid in arguments.values()
    )
    assert len(UNNAMED) <= (1.0 - LEAST_SHARE) * calls
