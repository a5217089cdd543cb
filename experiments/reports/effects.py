"""The effect of each column on a fit, and the tables of a regression."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

import attnkernel as ak
from attnkernel._core.compilation import SMALL_PROGRAM_OPTIONS, can_use_options
from attnkernel._core.rows import MAX_PADDED_ROWS
from attnkernel.inference._band_table import MIN_RELIABLE_COUNT
from attnkernel.inference._bands import bands_from_variance
from attnkernel.inference._report import measure_estimate, measure_rows, report_of
from attnkernel.inference._variance import RowVariance, row_diagnostics
from attnkernel.local._moments import method_of_moments
from attnkernel.plot._data import date_column, quantiles_of_column
from attnkernel.plot._diagnostics import inputs_of_noise
from attnkernel.plot._partial import Slice, has_bias_correction, slice_along

from ..runs import as_cell
from .page import Table

MAX_UNOPTIMISED_ROWS = 1024  # of one column, whose sums visit all pairs
VALUES_AT = (
    "at the quartiles of each column, or at each category, the others at their median or most "
    "frequent category"
)


class Effect(NamedTuple):
    """The fit along one column, the others held at a typical value, with its band."""

    line: Slice
    predicted: np.ndarray
    band: ak.inference.Bands


class Estimates(NamedTuple):
    """What a report shows of a fit: the effect of each column along a grid, and at its quartiles;
    its report; at the rows fitted values, and predictions from all other rows, or clusters; the
    variance of the noise at the inputs where `ak.plot.residuals` draws it, None of a
    `LocalLikelihood`; the columns of `numbers_at` new rows."""

    effects: list[Effect]
    values: list[Effect]
    report: ak.inference.Report
    fitted: np.ndarray
    left_out: np.ndarray
    variance: np.ndarray | None
    new: dict[str, list[Any]]


def estimates_of(fit: ak.Fit, level: float, new: np.ndarray) -> Estimates:
    """Returns what a report shows of a fit, with bands of a level, from one compiled program.

    `new`: rows to predict, shape (m, dim).
    """
    lines = [slice_along(fit, column) for column in range(fit.x.shape[1])]
    both = [*lines, *(at_quartiles(fit, line) for line in lines)]
    rows = np.concatenate([*(line.rows for line in both), new.astype(fit.x.dtype)])
    by = fit.objective if isinstance(fit.objective, ak.objectives.GroupKFold) else None

    def compute(fit: ak.Fit, *arrays: Array) -> tuple:
        return _estimates(fit, level, by, *arrays)

    arrays = jax.device_put((rows, inputs_of_noise(fit)))
    options: Any = {}
    if can_use_options(fit, arrays):
        options = {"compiler_options": _compiler_options(fit, len(rows))}
    found = eqx.filter_jit(compute, **options)(fit, *arrays)
    predicted, band, measured, variance = jax.tree.map(np.asarray, found)
    ends = np.cumsum([len(line.rows) for line in both])
    parts = [slice(end - len(line.rows), end) for line, end in zip(both, ends, strict=True)]
    parts += [slice(ends[-1], None)]
    found = [jax.tree.map(lambda of, part=part: of[part], (predicted, band)) for part in parts]
    effects = [Effect(line, *at) for line, at in zip(both, found[:-1], strict=True)]
    report, left_out = report_of(fit, measured), np.asarray(fit.y) - measured.loo_residuals
    along, values = effects[: len(lines)], effects[len(lines) :]
    at_rows = (measured.rows.fitted, left_out, variance)
    return Estimates(along, values, report, *at_rows, numbers_at(*found[-1]))


def _compiler_options(fit: ak.Fit, inputs: int) -> dict[str, Any]:
    """Returns the options of a program that runs once: it is not optimised where optimising takes
    longer than it saves.

    CPU seconds to compile and to run, optimised as small programs are → not, of one column: 260
    rows 3.5 + 0.02 → 1.4 + 0.06, 600 rows 3.9 + 0.1 → 1.3 + 0.3, 1100 rows 7.3 + 0.2 → 2.9 + 0.8;
    by a method of moments: 5479 rows 21 + 0.1 → 8 + 0.3, 13 000 rows 24 + 0.4 → 9 + 1.2. Of three
    columns a run costs more than 0.5 s: 260 rows, 1.5 → 2.1. `inputs`: the number of those at which
    it predicts.
    """
    x, model, method = fit.x, fit.model, None
    if isinstance(model, ak.KernelRegression):
        weights, order, _, named = model.polynomial(x, None)
        method = method_of_moments(x, x, x, weights, named, 2 * order)
    is_quick = method is not None or (len(x) <= MAX_UNOPTIMISED_ROWS and x.shape[1] == 1)
    if is_quick and inputs <= MAX_UNOPTIMISED_ROWS:
        return SMALL_PROGRAM_OPTIONS | {"xla_backend_optimization_level": 0}
    # 5479 rows in two columns: 24 CPU s, as other programs are compiled 30
    return SMALL_PROGRAM_OPTIONS if len(x) <= MAX_PADDED_ROWS else {}


def _estimates(
    fit: ak.Fit, level: float, by: ak.objectives.GroupKFold | None, rows: Array, at: Array
) -> tuple:
    """Returns predictions and bands at new rows, the figures of a report, and the variance of the
    noise at other inputs. `by`: the clusters by which errors and left-out residuals are."""
    corrected, is_linear = has_bias_correction(fit), isinstance(fit.model, ak.LinearSmoother)
    if by is not None or not is_linear:
        clusters = None if by is None else np.asarray(by.groups)
        band = ak.bands(fit, rows, level=level, corrected=corrected, clusters=clusters)
        measured = measure_rows(fit)
        if by is not None:
            others = fit.model(fit.x, fit.x, fit.y, prior=by.mask(fit.x), **by.weight_kwargs())
            measured = measured._replace(loo_residuals=fit.y - others)
        return fit(rows), band, measured, ak.noise_variance(fit, at) if is_linear else None
    # one estimate at the rows: XLA compiles a loop as often as it is traced (5479 rows of one
    # column: 17 CPU s, and 29 by `ak.bands`, `ak.noise_variance` and `measure_rows`)
    found = fit.model.estimate(None, fit.rows)
    diagnostics = row_diagnostics(found)
    rule, squares = RowVariance.of_estimate(found, diagnostics, "local")
    estimated, pointwise = (corrected, None, None), (0, None)
    curves, count, reliable, _ = bands_from_variance(
        rule, squares, jnp.asarray(level, rows.dtype), None, estimated, pointwise, rows
    )
    parts = (rows, *curves, level, "pointwise", count, reliable)
    band = ak.inference.Bands.of_fit(fit, rows, *parts, is_bias_corrected=corrected)
    variance = fit.rows.shaped(rule.at(at, squares))
    return fit(rows), band, measure_estimate(found, diagnostics), variance


def numbers_at(predicted: np.ndarray, band: ak.inference.Bands) -> dict[str, list[Any]]:
    """Returns the columns of numbers that a table or a file has of predictions and their band."""
    assert band.effective_count is not None  # of a band of the mean
    assert band.reliable is not None
    columns = {
        "fit": predicted,
        **({"corrected": band.centre} if band.is_bias_corrected else {}),
        "standard_error": band.standard_error,
        "lower": band.lower,
        "upper": band.upper,
        "labels": band.effective_count,
        "reliable": band.reliable,
    }
    return {name: np.asarray(of).tolist() for name, of in columns.items()}


def p_values_of(fit: ak.Fit, draws: int, key: PRNGKeyArray) -> list[dict[str, Any]]:
    """Returns the p-value of each column, by `ak.econometrics.relevance_test`; None for one that
    cannot be tested, with a sentence that says why."""
    found = []
    for column, of_column in enumerate(jax.random.split(key, fit.x.shape[1])):
        row = {"column": column_name(fit, column), "p_value": None}
        try:
            test = ak.econometrics.relevance_test(fit, column, draws=draws, key=of_column)
            found.append(row | {"p_value": float(test.p_value)})
        except ValueError as error:
            found.append(row | {"not_tested": str(error)})
    return found


def unreliable_effects(fit: ak.Fit, effects: Sequence[Effect]) -> list[str]:
    """Returns a sentence about the bands that have few labels near them somewhere, with what has
    more; it names nothing that is so already."""
    places = [
        f"along {column_name(fit, effect.line.column)} at {np.sum(~band.reliable)} of "
        f"{len(band.reliable)} points (least {np.min(band.effective_count):.2g})"
        for effect in effects
        if (band := effect.band).reliable is not None and band.effective_count is not None
        if not np.all(band.reliable)
    ]
    remedies = {
        "objective=aicc": not isinstance(fit.objective, ak.AICc | ak.objectives.GroupKFold),
        "model.order=0": getattr(fit.model, "order", 0) > 0,
        "fewer columns": fit.x.shape[1] > 1,
        "more rows": True,
    }
    sentence = (
        f"few labels are near, in effect less than {MIN_RELIABLE_COUNT:g}, {'; '.join(places)}. "
        f"Bands there cover the mean less often than they say: compare "
        f"{' or '.join(words for words, is_new in remedies.items() if is_new)}."
    )
    return [sentence] if places else []


def column_name(fit: ak.Fit, column: int) -> str:
    """Returns the name of a column; of dates, without the unit of days."""
    dates = date_column(fit, column)
    return str((fit.x_names or ())[column]) if dates is None else dates.name


def at_quartiles(fit: ak.Fit, line: Slice) -> Slice:
    """Returns a slice at the quartiles of its column; one of categories as it is."""
    if line.is_category:
        return line
    values = np.unique(quantiles_of_column(fit, line.column, [0.25, 0.5, 0.75]))
    rows = np.repeat(line.rows[:1], len(values), axis=0)
    rows[:, line.column] = values
    return line._replace(along=values, rows=rows)


def rows_of_values(fit: ak.Fit, effect: Effect) -> list[dict[str, Any]]:
    """Returns the rows of the table of values that are along one column, with the date of days."""
    column, numbers = effect.line.column, numbers_at(effect.predicted, effect.band)
    dates = date_column(fit, column)
    words = fit.x_categories and fit.x_categories[column]
    return [
        {
            "column": column_name(fit, column),
            "at": words[int(at)] if words else float(at),
            **({} if dates is None else {"date": dates.text(at)}),
            **{name: of[i] for name, of in numbers.items()},
        }
        for i, at in enumerate(effect.line.along)
    ]


def table_of_tests(tests: Sequence[Mapping[str, Any]]) -> Table:
    """Returns the p-values of columns, as text."""
    cells = [(row["column"], as_cell(row["p_value"]) or "not tested") for row in tests]
    return ["column", "p-value"], cells


def table_of_values(values: Sequence[dict[str, Any]], level: float) -> Table:
    """Returns the fitted values with their errors and limits, as text."""
    rows, share = [], f"{100 * level:.4g} %"
    shown = {"fit": "fit", "corrected": "corrected", "lower": f"lower {share}"}
    shown = {name: words for name, words in shown.items() if name in values[0]}
    shown |= {"upper": f"upper {share}"}
    for row in values:
        at, error = row.get("date", row["at"]), row["standard_error"]
        at = at if isinstance(at, str) else f"{at:.5g}"
        near = f"{row['labels']:.3g}{'' if row['reliable'] else ', too few'}"
        numbers = [_to_digits_of(error, row[name]) for name in shown]
        rows.append([row["column"], at, *numbers, f"{error:.5g}", near])
    return ["column", "at", *shown.values(), "standard error", "labels near"], rows


def _to_digits_of(error: float, number: float) -> str:
    """Returns a number to three digits of its standard error: 5 to 15 digits of its own."""
    digits = 5
    if error > 0 and number and np.isfinite(error) and np.isfinite(number):
        beyond = np.floor(np.log10(abs(number))) - np.floor(np.log10(error))
        digits = int(np.clip(3 + beyond, 5, 15))
    return f"{number:#.{digits}g}"
