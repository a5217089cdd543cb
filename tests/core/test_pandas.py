"""Data frames of pandas: names are kept, categories become codes, bad frames are refused."""

import functools
import operator
import pickle
import re

import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
import optax
import pandas
import pytest
from marks import slow
from matplotlib.figure import Figure
from refusals import assert_raises

import attnkernel as ak
from attnkernel._core.arrays import as_numpy_or_none, as_real_array
from attnkernel.kernels import number_columns

mpl.use("Agg")
N = 41


def table():
    rng = np.random.default_rng(3)
    age, names = rng.integers(20, 60, N), [f"row {i}" for i in range(N)]
    kind = pandas.Categorical(rng.choice(["red", "blue"], N), ["red", "blue", "grey"])
    frame = pandas.DataFrame({"age": age, "kind": kind}, index=names)
    wage = 0.1 * frame["age"] + (frame["kind"] == "red") + 0.1 * rng.normal(size=N)
    return frame, wage.rename("wage")


def fitted(x, y, columns=(0, 1), **options):
    kernel = ak.Gaussian(5.0).on(columns[0]) * ak.kernels.LiRacine(0.2).on(columns[1])
    options |= {"optimizer": ADAM, "steps": 1, "key": jax.random.PRNGKey(0)}
    return ak.fit(ak.KernelRegression(kernel), x, y, objective=ak.HoldOut(5), **options)


ADAM = optax.adam(0.01)


@pytest.fixture(scope="module")
def fit():
    return fitted(*table())


def test_a_series_that_is_read_by_position_is_refused_unless_its_index_is():
    dates = pandas.date_range("2026", periods=3)
    for read in (as_numpy_or_none, functools.partial(as_real_array, "numbers")):
        for index in ([2, 0, 1], ["a", "b", "c"], dates):
            series = pandas.Series([1.0, 2.0, 3.0], index=index)
            assert_raises("order of its rows here.*to_numpy", read, series)
        np.testing.assert_array_equal(read(pandas.Series([1.0, 2.0])), [1.0, 2.0])


def test_a_frame_is_fitted_as_its_numbers_and_codes(fit):
    frame, wage = table()
    codes = np.stack([frame["age"], (frame["kind"] == "blue")], axis=1).astype(float)
    np.testing.assert_array_equal(fit.x, codes)
    assert fit.x_names == ("age", "kind")
    assert fit.x_categories == (None, ("red", "blue", "grey"))
    assert fit.y_name == "wage"
    by_arrays = fitted(codes, wage.to_numpy(), weights=np.ones(N))
    assert by_arrays.x_names is by_arrays.x_categories is by_arrays.y_name is None
    asked = frame.iloc[[5, 2]]
    found = fit(asked)
    assert isinstance(found, pandas.Series)
    assert (found.name, list(found.index)) == ("wage", ["row 5", "row 2"])
    np.testing.assert_allclose(found, by_arrays(codes[[5, 2]]), rtol=1e-6)
    names = asked.astype({"kind": object})  # the same names, written otherwise
    np.testing.assert_array_equal(fit(names), found)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fit))(asked), found)
    assert isinstance(fit(codes[:2]), jax.Array)


def test_a_model_reads_categories_of_new_inputs_as_those_of_the_rows(fit, as_users_run_it):
    """Categories that are numbers could pass for their codes."""
    frame, wage = table()
    numbered = frame.assign(kind=frame["kind"].cat.rename_categories([20, 10, 30]))
    new = numbered.iloc[:5]
    np.testing.assert_allclose(fit.model(new, numbered, wage), fit(frame.iloc[:5]), rtol=1e-6)
    rows = ak.models.Rows.read(numbered, wage)
    assert_raises("Column 'kind' of x_new must be numeric", fit.model.estimate, new, rows)


def test_kernels_take_columns_by_their_names(fit):
    named = fitted(*table(), columns=("age", "kind")).model
    assert jax.tree.structure(named) == jax.tree.structure(fit.model)
    jax.tree.map(np.testing.assert_array_equal, named, fit.model)
    message = r"exactly one column of that name; x has \['age', 'kind'\]"
    assert_raises(message, fitted, *table(), ("wage", 1))
    message = "column 'age' needs a fit to a frame.*count the columns from 0"
    assert_raises(message, fitted, fit.x, fit.y, ("age", 1))
    assert_raises("must be an integer", ak.Gaussian(5.0).on, 1, "age")
    nested = number_columns(ak.Gaussian(5.0).on("age").on("kind", "age"), ["age", "kind"])
    assert (nested.columns, nested.kernel.columns) == ((1, 0), (1,))


def test_several_labels_come_back_as_a_frame():
    frame, wage = table()
    both = pandas.DataFrame({"wage": wage, "hours": 40.0 - wage})
    fit = fitted(frame, both, weights=pandas.Series(1.0, frame.index))
    assert fit.y_name == ("wage", "hours")
    found = fit(frame.iloc[:3])
    assert list(found.columns) == ["wage", "hours"]
    assert list(found.index) == ["row 0", "row 1", "row 2"]
    np.testing.assert_allclose(found["wage"] + found["hours"], 40.0, rtol=1e-5)


def test_bands_become_a_frame(fit):
    frame, _ = table()
    asked = frame.iloc[[7, 1, 4]]
    band = ak.conformal(fit, asked)
    found = band.frame()
    assert " ".join(found.columns) == "age kind centre standard_error lower upper"
    pandas.testing.assert_frame_equal(found[["age", "kind"]], asked)
    np.testing.assert_array_equal(found["upper"], band.upper)
    by_arrays = ak.conformal(fit, fit.inputs(asked))
    np.testing.assert_array_equal(band.lower, by_arrays.lower)
    assert list(by_arrays.frame().columns[:3]) == ["x1", "x2", "centre"]
    parts = operator.attrgetter("x", "centre", "standard_error", "lower", "upper", "level", "kind")
    with pytest.raises(ValueError, match=r"\['lower'\]"):
        ak.inference.Bands.of_fit(fit, asked.rename(columns={"age": "lower"}), *parts(band)).frame()


@pytest.mark.parametrize(
    ("function", "name"),
    [slow(ak.noise_variance, "wage"), (ak.inference.effective_count, "effective_count")],
)
def test_the_numbers_of_the_rows_of_a_frame_are_a_series(fit, function, name):
    found = function(fit, table()[0].iloc[:2])
    assert (found.name, list(found.index)) == (name, ["row 0", "row 1"])


def changed(column, row, value):
    frame, _ = table()
    frame = frame.astype({column: object})
    frame.loc[row, column] = value
    return frame


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (table()[0][["kind"]], r"\['age', 'kind'\], each once; got \['kind'\]"),
        (changed("kind", "row 3", "pink"), r"'kind' .* in row 'row 3': 'pink'. .*\['red'"),
        (changed("kind", "row 3", None), r"'kind' of x_new.* 1 missing .*'row 3'"),
        (table()[0].assign(age=np.nan), r"'age' of x_new.* 41 missing .*'row 0'"),
        (table()[0].assign(age="old"), r"'age' of x_new.*numeric.*'old'.*'row 0'"),
    ],
)
def test_new_frames_unlike_that_of_the_fit_are_refused(fit, asked, message):
    assert_raises(message, fit, asked)


def test_rows_with_missing_values_are_dropped_and_counted(fit):
    frame, wage = table()
    more = frame.iloc[[0, 5, 7]].rename(index=lambda name: f"more {name}")
    x = pandas.concat([more, frame]).astype(frame.dtypes.to_dict())
    y, weights = x["age"].astype(float).rename("wage"), np.r_[9.0, 9.0, 9.0, np.ones(N)]
    y[frame.index] = wage
    x["age"] = x["age"].astype(float)
    x.iloc[0, 0], x.iloc[1, 1], y.iloc[2] = np.nan, None, np.nan
    dropped = fitted(x, y, na="drop")
    np.testing.assert_array_equal(dropped.x, fit.x)
    np.testing.assert_array_equal(dropped.y, fit.y)
    assert float(dropped.loss) == float(fit.loss)
    assert (dropped.dropped_rows, fit.dropped_rows) == (3, 0)
    report = ak.summarise(dropped)
    assert report.dropped_rows == 3
    assert re.search(r"dropped rows +3, with missing values$", str(report))
    assert "dropped" not in str(ak.summarise(fit))
    for given in (weights, pandas.Series(weights, x.index)):
        of_weights = fitted(x, y, weights=given, na="drop").objective.weights
        np.testing.assert_array_equal(of_weights, np.ones(N))


def test_rows_of_arrays_with_missing_values_are_dropped():
    random = np.random.default_rng(0)
    x, y = random.uniform(size=(12, 2)), random.normal(size=12)
    gaps_x, gaps_y = x.copy(), y.copy()
    gaps_x[3, 1] = gaps_y[[3, 7]] = np.nan
    keep = ~np.isin(np.arange(12), [3, 7])
    weights = np.arange(1.0, 13.0)
    model = ak.KernelRegression(ak.Gaussian(0.5))
    no_steps = {"optimizer": optax.sgd(0.0), "steps": 1}
    expected = ak.fit(model, x[keep], y[keep], weights=weights[keep], **no_steps)
    for of_x, of_y in (
        (gaps_x, gaps_y),
        (jnp.asarray(gaps_x), gaps_y),
        (gaps_x.tolist(), gaps_y.tolist()),
        (np.ma.masked_invalid(gaps_x), np.ma.masked_array(y, ~keep)),
    ):
        found = ak.fit(model, of_x, of_y, weights=weights, na="drop", **no_steps)
        np.testing.assert_allclose(found.x, expected.x, rtol=1e-6)
        assert float(found.loss) == pytest.approx(float(expected.loss), rel=1e-6)
        assert found.dropped_rows == 2
    message = r"y must be.*2 of 12 rows.*ak\.fit\(\.\.\., na=\"drop\"\)"
    assert_raises(message, ak.fit, model, x, gaps_y)
    with pytest.raises(ValueError, match="have none inside jit"):
        jax.jit(lambda y: ak.fit(model, x, y, na="drop", **no_steps).loss)(y)
    gaps_y[7] = np.inf  # a number, though no label
    with pytest.raises(ValueError, match=r"1 of 10 rows.*Drop or fill those rows\.$"):
        ak.fit(model, gaps_x[np.r_[:3, 4:11]], np.r_[gaps_y[:3], gaps_y[4:11]], na="drop")


def test_names_and_categories_can_be_given(fit):
    named = fit.named(["years", "colour"], "pay", [None, ["red", "blue", "grey"]])
    assert (named.x_names, named.y_name) == (("years", "colour"), "pay")
    frame, _ = table()
    frame.columns = ["years", "colour"]
    np.testing.assert_array_equal(named(frame), fit(table()[0]))
    assert_raises(r"x_names.* 2", fit.named, ["a"])
    message = r"x_categories must be 2, a list or None"
    for wrong in ([None], "ab", [None, "red"]):
        assert_raises(message, fit.named, ["years", "colour"], "pay", wrong)


def test_missing_values_are_refused_unless_they_are_to_be_dropped():
    frame, wage = table()
    with pytest.raises(ValueError, match=r"of y has 1 missing.*'row 9'.*na=\"drop\""):
        fitted(frame, wage.where(wage.index != "row 9"))
    assert_raises(r"index.*weights\.loc", fitted, frame, wage, weights=wage.iloc[::-1], na="drop")
    assert_raises(r"na must be .*'error'.*'drop'", fitted, frame, wage, na="omit")


def test_frames_that_cannot_be_fitted_are_refused():
    frame, wage = table()
    assert_raises(r"'kind' of x.*numeric.*'row 0'", fitted, frame.astype({"kind": str}), wage)
    with pytest.raises(ValueError, match=r"'age' of x .*1 missing.*'row 9'"):
        fitted(frame.assign(age=frame["age"].where(frame.index != "row 9")), wage)
    with pytest.raises(ValueError, match=r"'age' of x .*datetime64.*Timedelta\(days=1\)"):
        fitted(frame.assign(age=pandas.Timestamp("2024-01-01")), wage)
    nothing = frame.iloc[:0].astype({"age": object})
    assert_raises(r"'age' of x must be numeric; its dtype is object\. ", fitted, nothing, wage[:0])
    numbers = frame.astype({"age": object})
    assert_raises(r"'age' of x .*object.*\.astype\(float\)", fitted, numbers, wage)
    assert_raises(r"index.*y\.loc\[x\.index\]", fitted, frame, wage.iloc[::-1])
    assert_raises(r"'kind' of y.*numeric", fitted, frame, frame["kind"])


def test_names_reach_plots(fit):
    ax = Figure().subplots()
    ak.plot.partial(fit, "kind", at={"age": 40}, band=False, ax=ax)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("kind", "wage")
    assert [text.get_text() for text in ax.get_xticklabels()] == ["red", "blue"]
    assert ax.get_legend().get_title().get_text() == "at age = 40"
    message = r"from 0 to 1, or one of \['age', 'kind'\]; got 'hours'"
    assert_raises(message, ak.plot.partial, fit, "hours", ax=ax)
    message = r"one of \['red', 'blue', 'grey'\] there; got 'pink'"
    assert_raises(message, ak.plot.partial, fit, "age", at={"kind": "pink"}, ax=ax)


def test_a_model_matches_rows_by_their_index(as_users_run_it):
    x = pandas.DataFrame({"a": np.linspace(0.0, 1.0, 12)})
    y = pandas.Series(np.arange(12.0))
    shuffled = y.sample(frac=1, random_state=0)
    model = ak.KernelRegression(ak.Gaussian(0.1))
    for arguments, name in (((x[:2], x, shuffled), "y"), ((x[:2], x, y, shuffled), "weights")):
        with pytest.raises(ValueError, match=f"x and {name} must have the same index"):
            model(*arguments[:3], **dict(zip(["weights"], arguments[3:], strict=False)))
