"""The report of a regression: its summary and tables, its figures, and the page `report.html`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import equinox as eqx
import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import attnkernel as ak
from attnkernel.data._csv import NewRows
from attnkernel.inference._report import natural_parameters, table_of_numbers
from attnkernel.plot._diagnostics import draw_residuals, inputs_of_noise
from attnkernel.plot._fit import draw_left_out
from attnkernel.plot._partial import draw_slice, held_text

from ..runs import Run
from ..studies.study import describe
from . import effects as of_columns, new_rows
from .dependence import notes_of_dependence
from .figures import legend, subplots
from .page import Picture, Section, Table, write_page

if TYPE_CHECKING:
    from ..studies.regression import Regression

SHAPE = ("is constant", "is linear", "is a parabola")  # of ŷ along a column of infinite lengthscale
EFFECT_WORDS = (
    "Each figure shows the fit along one column. The other columns are held at their median, or at "
    "their most frequent category."
)
BAND_WORDS = (
    "The band is {band}: it covers the mean at one value, not the whole curve at once, and does "
    "not include the choice of the lengthscales."
)
PARAMETER_WORDS = (
    "A lengthscale is a standard deviation of the Gaussian kernel, or the scale of another, in the "
    "units of its column. A bandwidth of a category is the weight of other categories: at 0, they "
    "have none. Around a circle of length p, a lengthscale ℓ is near a standard deviation of "
    "ℓ p / 2π."
)
CLUSTER_WORDS = (
    "Standard errors and limits allow for errors that are dependent within the clusters of "
    "{column!r}, of which there are {count}; left-out predictions are from the other clusters."
)
TEST_WORDS = (
    "The p-value is of the hypothesis that the mean of {label} does not depend on the column, all "
    "others given: by {draws} bootstraps of the seed {seed}, in each of which the lengthscale of "
    "the column is chosen again."
)


class Results(NamedTuple):
    """The fit, and what a report shows of it."""

    data: ak.data.Dataset
    fit: ak.Fit
    estimates: of_columns.Estimates
    new: NewRows | None
    tests: list[dict[str, Any]]


def draw_effect(fit: ak.Fit, effect: of_columns.Effect, ax: Axes) -> None:
    """Draws an effect with its band, and the legend below, where it hides nothing."""
    draw_slice(fit, effect.line, effect.predicted, effect.band, ax)
    legend(cast(Figure, ax.figure), [ax], columns=2)


def dropped_rows(data: ak.data.Dataset) -> str:
    """Returns how many rows were left out, and what they have, in words."""
    rows = "1 row" if data.dropped == 1 else f"{data.dropped} rows"
    return f"{rows} with missing cells{'' if data.weights is None else ' or a weight of 0'}"


def note_of_labels(y: np.ndarray) -> list[str]:
    """Returns a sentence about the family of labels that are 0 and 1, or small whole numbers."""
    if set(np.unique(y)) == {0.0, 1.0}:
        kind, of_them = "0 and 1", "model.family=binomial predicts probabilities, from 0 to 1"
    elif np.all((y >= 0) & (y == np.round(y))) and np.median(y) < 10:
        kind, of_them = "whole numbers from 0", "if they are counts, compare model.family=poisson"
    else:
        return []
    return [f"the labels are {kind}: {of_them}."]


def write(study: "Regression", results: Results, run: Run) -> None:
    """Writes the summary, the tables, the figures and the page of a regression."""
    data, estimates = results.data, results.estimates
    found = estimates.report
    if data.dropped:
        run.note([f"{dropped_rows(data)} left out; {len(data.y)} remain."])
    bound = ak.fitting.Result.AT_BOUND.message  # said of each parameter in the table
    run.note([each for each in found.warnings if not each.startswith(bound)])
    run.note(of_columns.unreliable_effects(results.fit, estimates.effects))
    run.note(notes_of_dependence(data, results.fit.objective, estimates.fitted))
    if study.model.family == "gaussian":
        run.note(note_of_labels(np.asarray(data.y)))
    run.note([row["not_tested"] for row in results.tests if "not_tested" in row])
    asked = {"draws": study.tests, "seed": study.seed, "columns": results.tests}
    more: dict[str, Any] = {"tests": asked} if results.tests else {}
    if results.new is not None:
        counts = new_rows.write_predictions(run, results.new, estimates.new)
        path = getattr(study.data, "predict", "")
        run.note([new_rows.note_of_predictions(path, counts)])
        more["predictions"] = {"file": path, **counts}
    parameters = _parameters(study, results)
    values = [
        row for each in estimates.values for row in of_columns.rows_of_values(results.fit, each)
    ]
    criterion = study.objective if data.clusters is None else "leave_one_cluster_out"
    loss = (criterion.replace("_", "-"), f"{found.loss:.6g}")
    of_fit = ["", ""], [loss, *table_of_numbers(found)]
    of_values = of_columns.table_of_values(values, study.level)
    rows = [[row["parameter"], f"{row['value']:.6g}", row["at_bound"]] for row in parameters]
    of_parameters = ["", "value", ""], rows
    run.table(f"{study.name}: {found.smoother}, {found.rows} rows", *of_fit)
    run.table("parameters", *of_parameters)
    words = _words_of_values(results)
    run.table(f"fitted values, {words[0].lower()}{words[1:]}", *of_values)
    if results.tests:
        about = f"p-values of columns, {study.tests} bootstraps each, seed {study.seed}"
        run.table(about, *of_columns.table_of_tests(results.tests))
    run.summary(
        {
            "data": {**describe(data), "dropped": data.dropped},
            "model": found.smoother,
            "kernel": found.kernel,
            "objective": criterion,
            "criterion": found.loss,
            **{name: getattr(found, name) for name in ("r_squared", "left_out_r_squared")},
            "residual_sd": found.residual_sd,
            "degrees_of_freedom": found.trace,
            "residual_degrees_of_freedom": found.residual_df,
            "parameters": parameters,
            "values": values,
            **more,
        }
    )
    _write_page(study, run, results, [of_fit, of_values, of_parameters])


def _write_page(study: "Regression", run: Run, results: Results, tables: Sequence[Table]) -> None:
    """Draws the figures and writes `report.html`; `tables`: numbers, values, parameters."""
    data, estimates = results.data, results.estimates
    found, effects = estimates.report, estimates.effects
    numbers, values, parameters = tables
    about_band = BAND_WORDS.format(band=effects[0].band.description)
    if data.clusters is not None:
        column, count = getattr(study.data, "clusters", ""), len(np.unique(data.clusters))
        about_band += " " + CLUSTER_WORDS.format(column=column, count=count)
    about_fit, about_effects, tests = about_band, [], []
    if len(effects) > 1:
        about_fit, about_effects = "", [EFFECT_WORDS, about_band]
    if results.tests:
        words = TEST_WORDS.format(label=data.y_name, draws=study.tests, seed=study.seed)
        about_effects, tests = [*about_effects, words], [of_columns.table_of_tests(results.tests)]
    sections = [
        Section("Numbers", tables=[numbers]),
        Section("Fit and residuals", about_fit, pictures=_draw_fit(run, results)),
        Section(
            "Effect of each column", " ".join(about_effects), tests, _draw_effects(run, results)
        ),
        Section("Fitted values", _words_of_values(results), [values]),
        Section("Parameters", f"Kernel: {found.kernel}. {PARAMETER_WORDS}", [parameters]),
    ]
    lead = f"{found.smoother.capitalize()} regression of {data.y_name} on "
    lead += f"{', '.join(data.x_names)}: {found.rows} rows"
    if data.weights is not None:
        lead += f", weighted by {getattr(study.data, 'weights', '')}"
    lead += f", and {dropped_rows(data)} left out." if data.dropped else "."
    write_page(run, f"{data.y_name}: {study.name}", lead, sections, is_dark=study.style == "dark")


def _words_of_values(results: Results) -> str:
    """Returns the text above the table of fitted values."""
    words = f"{of_columns.VALUES_AT.capitalize()}."
    if not results.estimates.effects[0].band.is_bias_corrected:
        return words
    return f"{words} Corrected: for the bias of the fit; errors and limits are of this estimate."


def _parameters(study: "Regression", results: Results) -> list[dict[str, Any]]:
    """Returns each parameter of the kernel, with what it means at a bound of its search."""
    fit, names = results.fit, results.data.x_names
    # −1, 0 or 1 is added to the stored number of each parameter
    sides = jax.tree.map(lambda side: np.asarray(side)[fit.best()], fit.starts.edges)
    moved = natural_parameters(eqx.apply_updates(fit.model, sides).kernel, names)
    found = []
    for name, value in results.estimates.report.parameters.items():
        note = ""
        if moved[name] > value:
            shape = SHAPE[study.model.order if name.startswith("lengthscale") else 0]
            what = "fit" if study.model.family == "gaussian" else "link of the fit"
            note = f"at its upper bound: the {what} {shape} in this column"
        elif moved[name] < value:
            is_length = name.startswith("lengthscale")
            own = "nearly the nearest rows alone" if is_length else "each category alone"
            note = f"at its lower bound: the fit averages {own}"
        found.append({"parameter": name, "value": value, "at_bound": note})
    return found


def _draw_fit(run: Run, results: Results) -> list[Picture]:
    """Draws the fit and its residuals; for several columns, observed against left-out."""
    data, fit, estimates = results.data, results.fit, results.estimates
    found = estimates.report
    figure, ax = subplots(figsize=(5.6, 3.6))
    if len(estimates.effects) == 1:
        (effect,) = estimates.effects
        ak.plot.points(data.x, data.y, ax=ax)
        draw_effect(fit, effect, ax)
        caption = f"Observations, and the fit with its {effect.band.description} band."
        ax.set_title(f"R² = {found.r_squared:.3f}, left-out R² = {found.left_out_r_squared:.3f}")
    else:
        draw_left_out(fit, estimates.left_out, ax)
        legend(figure, [ax])
        others = "rows" if data.clusters is None else "clusters"
        if data.clusters is not None:
            ax.set_xlabel(ak.plot.literal(f"prediction of {data.y_name} from the other clusters"))
        caption = f"Each observation against its prediction from all other {others}."
        ax.set_title(f"left-out R² = {found.left_out_r_squared:.3f}")
    run.figure("fit", figure)
    other, ax = subplots(figsize=(5.6, 3.6))
    draw_residuals(fit, estimates.fitted, inputs_of_noise(fit), estimates.variance, ax)
    ax.set_title(f"residual sd = {found.residual_sd:.4g}")
    legend(other, [ax])
    run.figure("residuals", other)
    has_noise = estimates.variance is not None
    with_noise = ", with the local standard deviation of the noise" if has_noise else ""
    with_noise += " of a row of weight 1" if has_noise and data.weights is not None else ""
    return [Picture("fit", caption), Picture("residuals", f"Residuals{with_noise}.")]


def _draw_effects(run: Run, results: Results) -> list[Picture]:
    """Draws the effect of each column, if there are several."""
    effects, pictures = results.estimates.effects, []
    if len(effects) == 1:
        return []
    for number, effect in enumerate(effects, start=1):
        figure, ax = subplots(figsize=(5.6, 3.6))
        draw_effect(results.fit, effect, ax)
        name = ak.plot.literal(of_columns.column_name(results.fit, effect.line.column))
        held = held_text(results.fit, effect.line)
        ax.set_title(f"effect of {name}, at {held}")
        run.figure(f"effect_{number}", figure)
        pictures.append(Picture(f"effect_{number}", f"At {held}."))
    return pictures
