"""Formulas: which columns they name, what they refuse, and the fit of a frame by one."""

import numpy as np
import optax
import pandas
import pytest

import attnkernel as ak
from attnkernel.data import columns_of_formula, parse_formula
from attnkernel.inference._report import kernel_expression

HEADER = ["y", "x1", "x2", "x-ray", "net income", "a+b", "c ~ d", "log(z)", "no - yes", "1"]
OTHERS = HEADER[1:]
FORMULAS = {
    "y ~ x1": ["x1"],
    "y ~ x2 + x1 + x2": ["x2", "x1"],
    "y ~ net income + x1": ["net income", "x1"],
    "y ~ `a+b` + `c ~ d`": ["a+b", "c ~ d"],
    "y ~ x-ray": ["x-ray"],
    "y ~ log(z) + 1": ["log(z)", "1"],
    "y ~ .": OTHERS,
    "y ~ . - x1": OTHERS[1:],
    "y ~ . -x1 - `no - yes`": [c for c in OTHERS[1:] if c != "no - yes"],
    "y ~ -x1 + x1 + x2": ["x1", "x2"],
    "y ~ . - x-ray + x-ray": [c for c in OTHERS if c != "x-ray"] + ["x-ray"],
    "x1 ~ . - y": ["x2", *OTHERS[2:]],
}


@pytest.mark.parametrize("text", FORMULAS)
def test_columns_of_a_formula(text):
    found = columns_of_formula(parse_formula(text), HEADER, "some.csv")
    assert found == FORMULAS[text]


@pytest.mark.parametrize("text", ["y", "y ~", "~ x", "y ~ x ~ z", "y + x", "y ~ + x", "y ~ x +"])
def test_what_is_no_formula_is_refused(text):
    with pytest.raises(ValueError, match="expected a formula, such as"):
        parse_formula(text)


REFUSED = {
    "y ~ x1:x2": r"'x1:x2'.*has their interactions by itself: write x1 \+ x2",
    "y ~ x1 * x2": r"interactions by itself: write x1 \+ x2",
    "y ~ log(x2)": r"follows the curve.*write x2, or add a column of log\(x2\)",
    "y ~ I(x1^2) + x2": "follows the curve of a column by itself: write x1",
    "log(y) ~ x1": r"add a column of log\(y\), and name that",
    "y ~ factor(x1)": "write x1 and --category x1",
    "y ~ x1 - 0": "no intercept.*drop '0'",
    "y ~ x1 - x3": "no column 'x3' to leave out; its columns are 'y', 'x1'",
    "y ~ x1 - x1": "leaves no column",
}


@pytest.mark.parametrize("text", REFUSED)
def test_expressions_are_refused_with_what_to_write(text):
    with pytest.raises(ValueError, match=REFUSED[text]):
        columns_of_formula(parse_formula(text), HEADER, "some.csv")


def test_a_dot_needs_names_of_all_columns():
    with pytest.raises(ValueError, match="column 2 has no name"):
        columns_of_formula(parse_formula("y ~ ."), ["y", "", "x"], "some.csv")


@pytest.mark.parametrize("text", ["y ~ .", "y ~ . - w", "y ~ x + z"])
def test_the_rest_is_without_columns_of_another_role(text):
    found = columns_of_formula(parse_formula(text), ["w", "x", "y", "z"], "some.csv", ("w", None))
    assert found == ["x", "z"]


N = 41


def table():
    rng = np.random.default_rng(5)
    return pandas.DataFrame(
        {
            "hour": rng.uniform(0.0, 24.0, N),
            "kind": rng.choice(["a", "b", "c"], N),
            "is wet": rng.uniform(size=N) < 0.5,
            "size": pandas.Categorical(rng.choice(["S", "L"], N), ["S", "L"], ordered=True),
            "age": rng.normal(size=N),
            "y": rng.normal(size=N),
        }
    )


ONE_STEP = {"optimizer": optax.adam(0.1), "steps": 1}


def test_a_formula_fits_the_columns_that_it_names_by_their_kinds():
    frame = table()
    fit = ak.fit(frame, "y ~ . - hour", objective="gcv", **ONE_STEP)
    assert fit.x_names == ("kind", "is wet", "size", "age")
    assert fit.x_categories == (("a", "b", "c"), (False, True), ("S", "L"), None)
    assert (fit.y_name, fit.model.order) == ("y", 1)
    assert kernel_expression(fit.model.kernel, fit.x_names) == (
        "Gaussian.on('age') * AitchisonAitken.on('kind') * AitchisonAitken.on('is wet') * "
        "LiRacineOrdered.on('size')"
    )
    pandas.testing.assert_series_equal(fit(frame[:5]), fit(frame[:5][[*frame][::-1]]))


@pytest.mark.slow
def test_a_formula_names_the_columns_of_another_model():
    frame, model = table(), ak.KernelRegression(ak.Gaussian(1.0).on("age"))
    by_formula = ak.fit(model, "y ~ hour + age", frame, objective="gcv", **ONE_STEP)
    by_columns = ak.fit(model, frame[["hour", "age"]], frame["y"], objective="gcv", **ONE_STEP)
    assert float(by_formula.loss) == float(by_columns.loss)
    frame.loc[3, "age"] = np.nan
    assert ak.fit(frame, "y ~ age", na="drop", objective="gcv", **ONE_STEP).dropped_rows == 1


def test_kernels_of_columns_by_their_kinds():
    frame = table()[["age", "hour", "size"]]
    kernel = ak.kernels.of_columns(frame, periods={"hour": 24.0}, kernel=ak.Laplace)
    parts = kernel.first.first, kernel.first.second, kernel.second
    assert [(type(part.kernel).__name__, part.columns) for part in parts] == [
        ("Periodic", (1,)),
        ("Laplace", (0,)),
        ("LiRacineOrdered", (2,)),
    ]
    np.testing.assert_allclose(parts[1].kernel.lengthscale, 0.3 * np.std(frame["age"]), rtol=1e-6)
    with pytest.raises(ValueError, match="Column 1 of x has one value in all rows"):
        ak.kernels.of_columns(np.array([[1.0, 2.0], [3.0, 2.0]]))


@pytest.mark.parametrize(
    ("model", "formula", "frame", "sentence"),
    [
        (table(), "y ~ z", None, r"has no columns 'z'.*its columns are \['hour'"),
        (table(), "y", None, "expected a formula"),
        (table().assign(age=np.nan), "y ~ .", None, "Column 'age' of x has 41 missing"),
        (table()["y"], "y ~ x", None, r'needs a frame of pandas.*ak\.fit\(frame, "y ~ x"\)'),
        (ak.KernelRegression(ak.Gaussian(1.0)), "x", "y", "needs a frame of pandas.*got str"),
        ("y ~ age", table(), None, r'comes first.*ak\.fit\(frame, "y ~ x"\)'),
    ],
)
def test_what_is_no_formula_of_a_frame_is_refused(model, formula, frame, sentence):
    with pytest.raises(ValueError, match=sentence):
        ak.fit(model, formula, frame)
