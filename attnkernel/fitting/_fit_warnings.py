"""Warnings of a fit: divergence, bounds, steps used up, missing slopes, categories, costs."""

from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from .._core.pandas_frames import Categories, Names
from ..attention import Auto
from ..kernels import OnColumns
from ..methods import Blockwise
from ..models import KernelRegression, Smoother
from ..objectives import Sample
from ._minimise import select_for_leave_one_out
from ._outcome import Result, Starts


class FitWarning(UserWarning):
    """The end of a fit may be no optimum, the kernel does not suit a column, or the fit is slow."""


class CostWarning(FitWarning):
    """The fit that begins will be slow: what it costs, and what would be faster."""


def result_warnings(starts: Starts, x_names: Names | None) -> list[str]:
    """Returns one sentence for each reason why the best end may be no optimum."""
    best = find_best_start(starts)
    result, at_bound, steps = (
        np.take_along_axis(np.asarray(values), np.expand_dims(best, -1), axis=-1)[..., 0]
        for values in (starts.result, starts.at_bound, starts.steps)
    )
    slopes = jax.tree_util.tree_leaves_with_path(starts.without_slope)
    flat = [_parameter_name(path) for path, is_missing in slopes if np.any(np.asarray(is_missing))]
    compared = (
        "The starts were compared, and nothing between them: ak.fit of one data set compares a grid"
        if result.ndim
        else "The best value of a grid, refined around its best levels, was taken"
    )
    diverged, unfinished = result == Result.DIVERGED, result == Result.MAX_STEPS

    def step(flags: Any) -> int:
        return int(np.ravel(steps)[np.argmax(flags)])

    reasons = (
        (diverged, f"diverged at step {step(diverged)}: {Result.DIVERGED.message}"),
        (at_bound, f"{Result.AT_BOUND.message}{_bound_advice(starts, x_names)}"),
        (unfinished, f"{Result.MAX_STEPS.message} It took {step(unfinished)}."),
        (
            np.asarray(result == Result.NO_SLOPE) & bool(flat),
            f"{Result.NO_SLOPE.message} {compared}: {' and '.join(flat)}.",
        ),
        (
            _is_constant(starts),
            "the objective is the same at all starts, to rounding: these data do not determine the "
            "parameters, and those of any start fit as well. Inputs of two values at order 1, or "
            "a different category in each row, do so.",
        ),
    )
    found = []
    for flags, sentence in reasons:
        if np.any(flags):
            if flags.ndim:
                first = int(np.argmax(flags))
                sentence = f"{np.sum(flags)} of {flags.size} fits, first fit {first}: {sentence}"
            found.append(sentence)
    return found


def _is_constant(starts: Starts) -> Any:
    """Returns, for each fit, whether all starts converged without a step, at the same loss.

    Losses are the same if they differ by at most 100 roundings.
    False for a single start.
    """
    loss = np.asarray(starts.loss)
    if loss.shape[-1] < 2:
        return np.zeros(loss.shape[:-1], bool)
    # not `starts.converged`, whose comparisons compile programs
    converged = np.isin(np.asarray(starts.result), (Result.CONVERGED, Result.AT_BOUND))
    stayed = np.all((np.asarray(starts.steps) == 0) & converged, axis=-1)
    tolerance = 100 * np.finfo(loss.dtype).eps * np.max(np.abs(loss), axis=-1)
    return stayed & (np.ptp(loss, axis=-1) <= tolerance)


def find_best_start(starts: Starts) -> Any:
    """Returns the index of the start with the least finite loss, for each fit."""
    loss = np.asarray(starts.loss)
    return np.argmin(np.where(np.isfinite(loss), loss, np.inf), axis=-1)


def parameters_on_bounds(starts: Starts, x_names: Names | None) -> list[tuple[str, int]]:
    """Returns (name, side) of each parameter of the best start that is on a bound.

    Side −1 is the lower bound, 1 the upper one. `starts` are those of one fit. If x has several
    columns, and each entry of a parameter belongs to one, the name includes the column.
    """
    found: list[tuple[str, int]] = []
    best = find_best_start(starts)
    for path, leaf in jax.tree_util.tree_leaves_with_path(starts.edges):
        sides = np.asarray(leaf)[best]
        names, part = x_names or (), starts.end
        for key in path:  # each `OnColumns` on the way selects columns
            columns = part.columns if isinstance(part, OnColumns) and names else None
            names = names if columns is None else tuple(names[int(c)] for c in columns)
            place = getattr(key, "idx", getattr(key, "key", None))  # in a sequence or dictionary
            part = getattr(part, key.name) if place is None else part[place]  # pyright: ignore
        has_column = len(x_names or ()) > 1 and (
            sides.shape == (len(names),) or (sides.shape, len(names)) == ((), 1)
        )
        for at in np.argwhere(sides):
            column = int(at[0]) if len(at) else 0
            place = f" of {names[column]}" if has_column else f"{list(map(int, at)) or ''}"
            found.append((f"{_parameter_name(path)}{place}", int(sides[tuple(at)])))
    return found


def _parameter_name(path: Any) -> str:
    """Returns the name of a parameter, such as `kernel.lengthscale`, from its JAX key path."""
    return jax.tree_util.keystr(path).removeprefix(".").replace("_parameter.z", "")


def _bound_advice(starts: Starts, x_names: Names | None) -> str:
    """Returns sentences that name the parameters on a bound, and advise what to do.

    `x_names`: the columns of x, if known. For several fits it only says to widen the bounds.
    """
    if starts.loss.ndim > 1:
        return " Widen bounds=."
    on_bounds = parameters_on_bounds(starts, x_names)
    parts = [
        f" On its {word} bound: {', '.join(names)}."
        for word, side in (("lower", -1), ("upper", 1))
        if (names := [name for name, at in on_bounds if at == side])
    ]
    advice = ""
    if any("lengthscale" in name and side == 1 for name, side in on_bounds):
        shape = {1: "is linear in", 2: "is quadratic in"}.get(getattr(starts.end, "order", 0))
        advice = f" On the upper bound of its lengthscale the fit {shape} a column."
        if shape is None:
            advice = " On the upper bound of its lengthscale y hardly depends on a column: drop it."
    if any("lengthscale" in name and side == -1 for name, side in on_bounds):
        advice += (
            " On its lower bound the fit averages little more than equal inputs. ak.AICc() prefers "
            "longer ones; order 0 has fewer terms, and so has an ak.models.AdditiveRegression."
        )
    return f"{''.join(parts)}{advice} Or widen bounds= of ak.fit."


def comparison_warnings(objective: Any) -> list[str]:
    """Returns a list of one sentence if cross-validation found rows that the other rows do not
    determine (`compared` of a `FoldValidation`), else an empty one."""
    if (compared := getattr(objective, "compared", None)) is None:
        return []
    here, n = np.asarray(compared), np.size(compared)
    left = "They are left out of the comparison, at all lengthscales."
    return [
        f"{np.sum(~here)} of {n} rows have too few neighbours for a polynomial of this order when "
        f"they are left out, and are predicted by one of lower order. "
        f"{left if here.any() else 'They are compared all the same.'} order=0 compares all rows, "
        f"as does objective=ak.AICc() of a linear smoother."
    ]


def category_warnings(
    model: Any, x_names: Names | None, categories: Categories | None
) -> list[str]:
    """Returns a list of one sentence if the kernel measures distances between codes of categories,
    else an empty one."""
    kernel = getattr(model, "kernel", None)
    if not isinstance(model, Smoother) or kernel is None or categories is None:
        return []
    known = model.category_counts(len(categories))
    columns = [c for c, among in enumerate(categories) if among is not None and c not in known]
    if not columns:
        return []
    names = [repr(x_names[c]) if x_names else str(c) for c in columns]
    return [
        f"{'columns' if len(columns) > 1 else 'column'} {', '.join(names)} of x hold"
        f"{'' if len(columns) > 1 else 's'} categories, and {type(kernel).__name__} takes "
        f"the differences of their codes for distances. Use a product of kernels for the kinds of "
        f"the columns: ak.kernels.of_columns(x)."
    ]


# Value and gradient of leave-one-out in float32, 2 cores, in 10⁹ pairs a second:
# - order 0, 15 000 rows: Gaussian in 4 dimensions 0.6, Cauchy in 1 0.2, Matérn 3/2 in 4 0.15
# - order 1, 8000 rows, Gaussian: in 2 dimensions 0.13, in 4 0.11, in 10 0.06
# - order 2, 8000 rows, Gaussian: in 2 dimensions 0.12
MIN_SECONDS = 10.0  # of one evaluation: the warning comes from here on


def cost_warnings(model: Any, data: Sample) -> list[str]:
    """Returns a list of one sentence if an evaluation sums all pairs on a CPU for more than 10
    seconds, else an empty one.

    It names a rough cost, why no faster sum applies, and what would be faster. Only a
    `KernelRegression` with the method `Auto` is examined, outside `jit`.
    """
    if not isinstance(model, KernelRegression) or not isinstance(model.method, Auto):
        return []
    n, order = data.x.shape[0], model.order
    seconds = n**2 / (3e8, 1e8, 1e8)[order]  # pairs a second, of each order
    if seconds < MIN_SECONDS or isinstance(data.x, Tracer):
        return []
    selection = select_for_leave_one_out(model, data.x, data.objective.weights)
    if jax.default_backend() != "cpu" or not isinstance(selection.method, Blockwise):
        return []
    reasons = "; ".join(f"not {name}: {why}" for name, why in selection.skipped if name != "Dense")
    faster = (
        "ak.Gaussian in up to 3 dimensions, ak.Laplace or a compact kernel in 1, without weights"
    )
    if order:
        faster = "ak.Gaussian in 1 dimension, or order 0 in up to 3, without weights"
    return [
        f"{type(data.objective).__name__} of {n} rows sums {n**2:.1e} pairs: very roughly "
        f"{seconds:.0f} s an evaluation, less where distant rows are skipped. A search takes about "
        f"10 for each parameter and each minimum. No faster sum applies ({reasons}). Faster: "
        f"{faster} of rows; a fit to a random part of the rows; or objective=ak.HoldOut(1000) with "
        f"an optimizer and a key, which sums {1000 * n:.1e} pairs a step."
    ]
