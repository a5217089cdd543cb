"""Formulas of the command `fit`: which columns they name, and what to write in place of R's."""

from pathlib import Path

import pytest

from experiments.config import formula
from experiments.config.loading import ConfigError

HEADER = ["y", "x1", "x2", "x-ray", "net income", "a+b", "c ~ d", "log(z)", "no - yes", "1"]
OTHERS = HEADER[1:]
FORMULAS = {
    "y ~ x1": ["x1"],
    "y~x1+x2": ["x1", "x2"],
    "y ~ x2 + x1 + x2": ["x2", "x1"],
    "y ~ net income + x1": ["net income", "x1"],
    "y ~ `a+b` + `c ~ d`": ["a+b", "c ~ d"],
    "y ~ x-ray": ["x-ray"],
    "y ~ log(z) + 1": ["log(z)", "1"],
    "y ~ .": OTHERS,
    "y ~ . - x1": OTHERS[1:],
    "y ~ . -x1 - `no - yes`": [c for c in OTHERS[1:] if c != "no - yes"],
    "y ~ .-x1": OTHERS[1:],
    "y ~ x1 + x2 - x1": ["x2"],
    "y ~ -x1 + x1 + x2": ["x1", "x2"],
    "y ~ . - x-ray + x-ray": [c for c in OTHERS if c != "x-ray"] + ["x-ray"],
    "x1 ~ . - y": ["x2", *OTHERS[2:]],
}


@pytest.mark.parametrize("text", FORMULAS)
def test_columns_of_a_formula(text):
    found = formula.columns_of(formula.parse(text), HEADER, Path("some.csv"))
    assert found == FORMULAS[text]


@pytest.mark.parametrize("text", ["y", "y ~", "~ x", "y ~ x ~ z", "y + x", "y ~ + x", "y ~ x +"])
def test_what_is_no_formula_is_refused(text):
    with pytest.raises(ConfigError, match="expected a formula, such as"):
        formula.parse(text)


REFUSED = {
    "y ~ x1:x2": r"'x1:x2'.*has their interactions by itself: write x1 \+ x2",
    "y ~ x1 * x2": r"interactions by itself: write x1 \+ x2",
    "y ~ (x1 + x2)^2": "interactions by itself: write x1",
    "y ~ x1 | x2": r"interactions by itself: write x1 \+ x2",
    "y ~ log(x2)": r"follows the curve.*write x2, or add a column of log\(x2\) to the file",
    "y ~ I(x1^2) + x2": "follows the curve of a column by itself: write x1",
    "y ~ s(x1, k=5)": "write x1",
    "log(y) ~ x1": r"add a column of log\(y\) to the file, and name that",
    "y ~ factor(x1)": "write x1 --category x1",
    "y ~ x1 - 0": "no intercept.*drop '0'",
    "y ~ x1 - x3": "no column 'x3' to leave out; its columns are 'y', 'x1'",
    "y ~ x1 - x1": "leaves no column",
}


@pytest.mark.parametrize("text", REFUSED)
def test_expressions_are_refused_with_what_to_write(text):
    with pytest.raises(ConfigError, match=REFUSED[text]):
        formula.columns_of(formula.parse(text), HEADER, Path("some.csv"))


def test_a_dot_needs_names_of_all_columns():
    with pytest.raises(ConfigError, match="column 2 has no name"):
        formula.columns_of(formula.parse("y ~ ."), ["y", "", "x"], Path("some.csv"))
