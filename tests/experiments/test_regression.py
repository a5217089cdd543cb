"""The study `regression` and the command `fit`: any table from the shell, formulas, against
`ak.fit`."""

import base64
import contextlib
import csv
import dataclasses
import functools
import io
import os
import re
import sys
from datetime import date, timedelta

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from outputs import read_json
from paths import DOCS
from rich.table import Table

import attnkernel as ak
from attnkernel.data._records import Records
from experiments.__main__ import main
from experiments.config.schema import Csv, CsvWithNewRows
from experiments.reports.effects import table_of_values
from experiments.runs.output_log import OutputLog
from experiments.runs.runner import load
from experiments.studies.regression import ColumnModel
from experiments.studies.study import Keys

START = date(2020, 5, 1)
NEW = """who;width;kind;stem height;day
"a;b";;elm;2,5;2020-05-11
c;?;oak;;2020-06-01
d;9;ash;40;2020-04-01
e;;;1,5;NA
f;1;oak;6,25;2020-07-04
"""  # rows to predict, two with missing cells, one far from all labels
KINDS = ("ash", "elm", "oak")


@pytest.fixture(scope="module")
def trees(tmp_path_factory):
    """A folder with trees.csv, as a spreadsheet in German saves it, and its complete rows."""
    random = np.random.default_rng(3)
    lines, rows = ["day;kind;stem height;width"], []
    for i in range(37):
        day, kind, height = i * 7 % 100, i % 3, round(random.uniform(1, 9), 2)
        width = round(0.02 * day + [0.3, 0.0, 0.5][kind] + 0.4 * random.normal(), 3)
        shown = [f"{START + timedelta(days=day)}", KINDS[kind]]
        shown += [str(number).replace(".", ",") for number in (height, width)]
        if i in (3, 17, 30):
            shown[{3: 2, 17: 1, 30: 3}[i]] = "NA" if i == 3 else ""
        else:
            rows.append([day, kind, height, width])
        lines.append(";".join(shown))
    folder = tmp_path_factory.mktemp("trees")
    (folder / "trees.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder, np.array(rows)


@pytest.fixture(scope="module")
def fitted(trees):
    """The directory of a fit of trees.csv, its summary, and what the command printed.

    A shell splits the formula into words, and takes `~` for the home directory.
    """
    words = ["width", os.path.expanduser("~"), "day", "+", "kind", "+", "stem", "height"]
    options = ["--delimiter", ";", "--decimal", ",", "--missing", "drop", "--order", "1"]
    options += ["--predict", "new.csv"]
    (trees[0] / "new.csv").write_text(NEW, encoding="utf-8")
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(trees[0]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        assert main(["fit", "trees.csv", *words, *options, "--out", "run"]) == 0
    assert err.getvalue() == ""
    run = trees[0] / "run"
    return run, read_json(run / "summary.json"), out.getvalue()


def test_a_fit_from_the_shell_says_what_it_read_and_can_be_run_again(trees, fitted, monkeypatch):
    run, summary, printed = fitted
    data = summary["data"]
    assert (data["rows"], data["dropped"]) == (34, 3)
    assert data["inputs"] == ["day (days since 2020-05-01)", "kind", "stem height"]
    assert "3 rows with missing cells left out; 34 remain." in printed
    read, found, *_ = printed.splitlines()
    assert read == "34 rows are read; the search for lengthscales begins"
    assert found.startswith("lengthscales are found")
    assert "Gaussian.on('day (days since 2020-05-01)', 'stem height') * Aitch" in summary["kernel"]
    assert "report  run/report.html" in printed
    monkeypatch.chdir(trees[0])
    study = load(run / "config.yaml", [])  # that of `run`
    assert (study.study, study.name, study.model.order) == ("regression", "trees", 1)
    assert study.data.x == ["day", "kind", "stem height"]
    assert "report.html" in read_json(run / "status.json")["files"]


def test_report_is_one_file_that_loads_and_runs_nothing(fitted):
    run, _, _ = fitted
    page = (run / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"<script|https?:|src=\"(?!data:)|href=|url\(", page)
    pictures = re.findall(r'src="data:image/png;base64,([^"]*)"', page)
    files = ("fit", "residuals", "effect_1", "effect_2", "effect_3")
    expected = [(run / "figures" / f"{name}.png").read_bytes() for name in files]
    assert [base64.b64decode(picture) for picture in pictures] == expected
    for words in ("3 rows with missing cells left out", "lengthscale of stem height", "elm"):
        assert words in page


def test_lengthscale_at_its_bound_and_dates_are_said_everywhere(trees, fitted):
    run, summary, printed = fitted
    sentence = "at its upper bound: the fit is linear in this column"
    found = summary["parameters"][0]
    assert found["at_bound"] == sentence
    days = trees[1][:, 0]
    assert found["value"] == pytest.approx(10 * np.ptp(days), rel=5e-3)
    page = (run / "report.html").read_text(encoding="utf-8")
    assert sentence in page
    assert "at its upper bound" in printed  # in a table, whose cells are wrapped
    quartiles = [
        f"{START + timedelta(days=round(day))}" for day in np.quantile(days, [0.25, 0.5, 0.75])
    ]
    dates = [row["date"] for row in summary["values"] if row["column"].startswith("day")]
    assert dates == quartiles
    for text in (page, printed):
        assert quartiles[1] in text


def test_new_rows_keep_their_cells_and_have_a_prediction_unless_a_cell_is_missing(fitted):
    run, summary, printed = fitted
    header, *rows = csv.reader((run / "predictions.csv").read_text(encoding="utf-8").splitlines())
    given, *lines = csv.reader(io.StringIO(NEW), delimiter=";")
    added = ["prediction", "corrected", "standard_error", "lower", "upper", "labels", "reliable"]
    assert header == given + added
    assert [row[: len(given)] for row in rows] == lines
    assert [row[len(given) :] == [""] * len(added) for row in rows] == [False, True] * 2 + [False]
    for row in (rows[0], rows[2], rows[4]):
        _, centre, error, lower, upper, labels = map(float, row[5:-1])
        np.testing.assert_allclose([centre - lower, upper - centre], 1.96 * error, rtol=1e-3)
        assert row[-1] == "false" or labels >= 3
    assert rows[2][-1] == "false"
    unreliable = sum(row[-1] == "false" for row in rows)
    found = {"file": "new.csv", "rows": 5, "missing": 2, "unreliable": unreliable}
    assert summary["predictions"] == found
    assert "the predictions of 3 of 5 rows of new.csv; rows with a missing cell: 2." in printed
    assert "predictions run/predictions.csv" in printed


@pytest.mark.slow
def test_a_fit_from_the_shell_equals_that_of_arrays(trees, fitted, x64):
    """The numbers of a summary are those of `ak.fit`, `ak.summarise` and `ak.bands`."""
    summary, x, y = fitted[1], trees[1][:, :3], trees[1][:, 3]
    quantities = ak.Gaussian(jnp.asarray(ak.inference.normal_reference(x[:, [0, 2]]))).on(0, 2)
    model = ak.KernelRegression(quantities * ak.kernels.AitchisonAitken(1 / 3, 3).on(1), order=1)
    with pytest.warns(ak.fitting.FitWarning, match="upper bound"):
        fit = ak.fit(model, x, y)
    report = ak.summarise(fit)
    assert summary["criterion"] == pytest.approx(float(fit.loss), rel=1e-9)
    assert summary["r_squared"] == pytest.approx(report.r_squared, rel=1e-6)
    assert summary["degrees_of_freedom"] == pytest.approx(report.trace, rel=1e-6)
    found = [row["value"] for row in summary["parameters"]]
    np.testing.assert_allclose(found, list(report.parameters.values()), rtol=1e-5)
    days = np.round(np.quantile(x[:, 0], [0.25, 0.5, 0.75]))
    held = [np.bincount(x[:, 1].astype(int)).argmax(), np.median(x[:, 2])]
    at = np.array([[day, *held] for day in days])
    band = ak.bands(fit, at)
    rows = [row for row in summary["values"] if row["column"].startswith("day")]
    assert [row["at"] for row in rows] == list(days)
    np.testing.assert_allclose([row["fit"] for row in rows], fit(at), rtol=1e-6)
    for name in ("standard_error", "lower", "upper"):
        found = [row[name] for row in rows]
        np.testing.assert_allclose(found, getattr(band, name), rtol=1e-5, err_msg=name)
    new = np.array([[10.0, 1, 2.5], [64, 2, 6.25]])
    band = ak.bands(fit, new)
    with (fitted[0] / "predictions.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["who"] in ("a;b", "f")]
    expected = {"prediction": fit(new), "corrected": band.centre, "labels": band.effective_count}
    for name in ("standard_error", "lower", "upper"):
        expected[name] = getattr(band, name)
    for name, values in expected.items():
        found = [float(row[name]) for row in rows]
        np.testing.assert_allclose(found, values, rtol=1e-5, err_msg=name)
    assert [row["reliable"] == "true" for row in rows] == band.reliable.tolist()


TREES = ["data.delimiter=;", "data.decimal=,", "data.missing=drop"]
FAULTS = [
    ("width ~ .", [], r"no column for y: 'width'.*Try --delimiter ';'"),
    ("width ~ .", ["data.delimiter=;", "data.decimal=,"], r"'NA'.*Try --missing drop"),
    ("width ~ dai", ["data.delimiter=;"], r"no column for x: 'dai'; its columns are 'day', "),
    ("width day", [], r"expected a formula, such as 'wage ~ age \+ sex'.*got 'width day'"),
    ("width ~ day", ["model.order=3"], r"model\.order: expected 0, 1 or 2; got 3"),
    ("width ~ day", ["--periodic", "day"], r"expected COLUMN=PERIOD, hour=24; got 'day'"),
    ("width ~ day", [*TREES, "--family", "binomial"], r"model\.family: y must be from 0 to 1"),
    (
        "width ~ day",
        [*TREES, "--clusters", "kind", "--family", "gamma"],
        r"model\.family: clusters are for the family gaussian",
    ),
    (
        "width ~ day",
        [*TREES, "--clusters", "kind", "--objective", "gcv"],
        r"objective: with clusters .* expected leave_one_out; got gcv",
    ),
    ("width ~ day", [*TREES, "--predict", "no.csv"], r"data\.predict: There is no file no\.csv"),
    (
        "width ~ kind",
        [*TREES, "--predict", "new.csv", "data.path=elms.csv"],
        r"new\.csv, row 1 .*'kind': expected one of 'ash', 'oak', the words of .*; got 'elm'\. L",
    ),
    (
        "width ~ day",
        [*TREES, "--predict", "taken.csv"],
        r"data\.predict: predictions\.csv adds .* has 'lower' already: rename it there",
    ),
]


@pytest.mark.parametrize(("words", "overrides", "sentence"), FAULTS)
def test_wrong_fits_are_one_sentence(trees, home, error_of, words, overrides, sentence):
    (home / "new.csv").write_text(NEW, encoding="utf-8")
    (home / "taken.csv").write_text("day;lower\n", encoding="utf-8")
    lines = (trees[0] / "trees.csv").read_text(encoding="utf-8").splitlines()
    (home / "elms.csv").write_text("\n".join(line for line in lines if "elm" not in line))
    (line,) = error_of("fit", trees[0] / "trees.csv", words, *overrides).splitlines()
    assert re.search(sentence, line)


@pytest.mark.slow
def test_weights_clusters_and_tests_from_the_shell_equal_those_of_arrays(tmp_path, x64, capsys):
    random = np.random.default_rng(5)
    n, names = 53, np.array(list("abcdefgh"))
    x, group = random.uniform(0, 9, n).round(2), random.integers(0, 8, n)
    weights = np.where(np.arange(n) % 11 == 3, 0.0, random.choice([0.5, 1.0, 2.0], n))
    y = (np.sin(x) + 0.4 * random.normal(size=8)[group] + 0.3 * random.normal(size=n)).round(3)
    rows = zip(x, np.where(weights > 0, y, 1e6), weights, names[group], strict=True)
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("x", "y", "w", "who"), *rows])
    fit = ["fit", str(tmp_path / "a.csv"), "--weights", "w"]
    run, other = tmp_path / "run", tmp_path / "other"
    assert main([*fit, "y ~ .", "--clusters", "who", "--out", str(run)]) == 0
    assert main([*fit, "y ~ . - who", "--tests", "tests=99", "seed=7", "--out", str(other)]) == 0
    printed = capsys.readouterr().out
    kept = weights > 0
    x, y, weights, group = (of[kept] for of in (x, y, weights, group))
    model = ak.KernelRegression(ak.Gaussian(0.3 * x.std()), order=1)
    objective = ak.objectives.GroupKFold(group, folds=None)
    expected = ak.fit(model, x, y, objective=objective, weights=weights)
    summary = read_json(run / "summary.json")
    assert (summary["objective"], summary["data"]["inputs"]) == ("leave_one_cluster_out", ["x"])
    assert summary["criterion"] == pytest.approx(float(expected.loss), rel=1e-9)
    others = expected.model(
        x, x, y, prior=ak.objectives.OtherFolds(jnp.asarray(group)), weights=jnp.asarray(weights)
    )
    about = np.average((y - np.average(y, weights=weights)) ** 2, weights=weights)
    left_out = 1 - np.average((y - np.asarray(others)) ** 2, weights=weights) / about
    assert summary["left_out_r_squared"] == pytest.approx(left_out, rel=1e-6)
    band = ak.bands(expected, np.quantile(x, [0.25, 0.5, 0.75]), clusters=group)
    for name in ("standard_error", "lower", "upper"):
        found = [row[name] for row in summary["values"]]
        np.testing.assert_allclose(found, getattr(band, name), rtol=1e-5, err_msg=name)
    plain = ak.fit(model, x, y, weights=weights)
    key = jax.random.split(Keys(jax.random.PRNGKey(7)).stack(2)[1], 1)[0]
    p_value = ak.econometrics.relevance_test(plain, 0, draws=99, key=key).p_value
    assert read_json(other / "summary.json")["tests"] == {
        "draws": 99,
        "seed": 7,
        "columns": [{"column": "x", "p_value": pytest.approx(float(p_value))}],
    }
    assert "p-values of columns, 99 bootstraps each, seed 7" in printed
    assert main(["reproduce", str(run)]) == 0


def test_constant_columns_and_words_among_numbers_are_refused_with_what_to_write(home, error_of):
    (home / "constant.csv").write_text("x,c,y\n1,5,2\n2,5,3\n3,5,5\n4,5,4\n")
    error = error_of("fit", "constant.csv", "y ~ .")
    assert re.search(r"one value in all rows of 'c'.*as in 'y ~ \. - c'", error)
    (home / "word.csv").write_text("size,y\n1,2\n2,3\nlarge,4\n5,7\n")
    error = error_of("fit", "word.csv", "y ~ size")
    assert "got 'large'. Correct that cell. Try --category size." in error


def test_control_characters_of_a_file_are_shown_as_their_codes(tmp_path):
    names = ["width\x1b[31m", "kind", "\u202elabel"]
    rows = [[f"{i}", "ab\x07"[i % 2 :: 2], f"{i * i}"] for i in range(9)]
    (tmp_path / "odd.csv").write_text("\n".join(map(",".join, [names, *rows])))
    data = Csv(source="csv", path=str(tmp_path / "odd.csv"), x=names[:2], y=names[2]).load(None)
    assert data.x_names == (r"width\x1b[31m", "kind")
    assert (data.y_name, data.categories) == (r"\u202elabel", (None, (r"a\x07", "b")))


def test_a_file_is_read_once_until_it_changes(tmp_path, monkeypatch):
    reads, path, new = [], tmp_path / "a.csv", tmp_path / "new.csv"

    records = lambda path, *options: reads.append(path.name) or Records(path, *options)  # noqa: E731
    monkeypatch.setattr("attnkernel.data._csv.Records", records)
    path.write_text("x,y\n1,2\n2,3\n4,5\n")
    new.write_text("x\n2\n")
    fields = {"source": "csv", "path": str(path), "x": "x", "y": "y", "predict": str(new)}
    for _ in range(2):
        data = CsvWithNewRows(**fields)
        assert data.load(None).x.shape == (3, 1)
        assert data.read_new().numbers.tolist() == [[2.0]]
    assert reads == ["a.csv", "new.csv"]
    with jax.enable_x64(True):
        assert data.load(None).x.dtype == "float64"
    path.write_text("x,y\n1,2\n2,3\n4,5\n6,7\n")
    assert data.load(None).x.shape == (4, 1)
    assert reads == ["a.csv", "new.csv", "a.csv", "a.csv"]


def test_each_column_has_the_kernel_of_its_kind(x64):
    x = np.array([[0.0, 0, 1, 5], [1, 1, 0, 7], [2, 2, 1, 6], [4, 0, 2, 9]])
    data = ak.data.Dataset(
        jnp.asarray(x),
        jnp.asarray(np.arange(4.0)),
        categories=(None, ("a", "b", "c"), ("low", "middle", "high"), None),
        ordered=(False, False, True, False),
    )
    kernel = ColumnModel(order=2).make(data).kernel
    names = ("hour", "kind", "size", "age")
    shown = functools.partial(ak.inference._report.kernel_expression, names=names)
    assert shown(kernel) == (
        "Gaussian.on('hour', 'age') * AitchisonAitken.on('kind') * LiRacineOrdered.on('size')"
    )
    named = dataclasses.replace(data, x_names=names)
    round_a_day = ColumnModel(periods={"hour": 24.0}).make(named).kernel
    assert shown(round_a_day).startswith("Periodic.on('hour') * Gaus")
    assert round_a_day.first.first.first.kernel.period == 24
    rough = ColumnModel(kernel="laplace").make(data).kernel
    assert shown(rough).startswith("Laplace.on('hour') * Laplace.on('age') * AitchisonAitken.on(")


@pytest.mark.slow
def test_a_family_from_the_shell_is_a_local_likelihood(tmp_path, x64):
    random = np.random.default_rng(0)
    x = random.uniform(0, 9, 61).round(2)
    counts = random.poisson(np.exp(np.sin(x)))
    lines = [f"{at},{count}" for at, count in zip(x, counts, strict=True)]
    (tmp_path / "visits.csv").write_text("\n".join(["hour,visits", *lines]), encoding="utf-8")
    arguments = "visits ~ hour", "--family", "poisson", "--quiet", "--out", str(tmp_path / "run")
    assert main(["fit", str(tmp_path / "visits.csv"), *arguments]) == 0
    found = read_json(tmp_path / "run" / "summary.json")
    model = ak.LocalLikelihood(ak.Gaussian(0.3 * np.std(x)), family=ak.Poisson(), order=1)
    fit = ak.fit(model, x, counts.astype(float))
    assert found["model"] == "local linear, Poisson"
    np.testing.assert_allclose(found["criterion"], fit.loss, rtol=1e-6)
    quartiles = np.quantile(x, [0.25, 0.5, 0.75])
    np.testing.assert_allclose([row["fit"] for row in found["values"]], fit(quartiles), rtol=1e-6)


@pytest.mark.slow
def test_one_column_is_drawn_with_its_band_and_equals_its_own_study(run_study, programs):
    overrides = ("data.name=mcycle", "data.x=times", "data.y=accel", "model.order=0", "level=0.9")
    run = run_study("regression", *overrides, style="dark")
    found = run.summary
    # one search, one program of all estimates, and six of a key
    assert [programs.count(f"jit({name})") for name in ("_advance", "compute")] == [1, 1]
    assert len(programs) <= 8
    assert (found["kernel"], found["data"]["dropped"]) == ("Gaussian", 0)
    assert set(run.figures) == {"fit", "residuals"}
    arrays = run.arrays("fit")
    kept = read_json(DOCS / "summaries" / "mcycle.json")["summary"]
    assert found["criterion"] == pytest.approx(kept["criterion"], rel=1e-9)
    assert found["parameters"][0]["value"] == pytest.approx(kept["lengthscale"], rel=1e-6)
    band = "1: 90 % pointwise band, bias-corrected"
    assert {*arrays} == {"1: observations", "1: fit", "1: centre of the band", band}


@pytest.mark.parametrize("centre", [0.0, 1e9])
def test_values_have_the_digits_of_their_errors(centre):
    row = {"column": "x", "at": 1.0, "fit": centre + 0.51849, "standard_error": 0.17533}
    row |= {"lower": centre + 0.08988, "corrected": centre + 0.43352, "upper": centre + 0.77715}
    names, [[_, _, *numbers, error, near]] = table_of_values(
        [row | {"labels": 2.345, "reliable": False}], 0.95
    )
    assert names[2:6] == ["fit", "corrected", "lower 95 %", "upper 95 %"]
    shown = [float(number) - centre for number in numbers]
    np.testing.assert_allclose(shown, [0.51849, 0.43352, 0.08988, 0.77715], atol=5e-4)
    assert (error, near) == ("0.17533", "2.35, too few")


def test_no_number_of_a_table_is_cut(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    table = Table(*"abcdef", "at its bound", box=None)
    table.add_row(*["-9.0078e+08"] * 6, "the fit is linear in this column, and so on and on")
    for is_terminal in (True, False):
        monkeypatch.setattr(type(sys.stdout), "isatty", lambda _, found=is_terminal: found)
        output = OutputLog(tmp_path / f"{is_terminal}.log", quiet=False)
        output.print(table)
        output.close()
        printed = re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out)
        assert printed.split().count("-9.0078e+08") == 6
        for text in (printed, (tmp_path / f"{is_terminal}.log").read_text())[is_terminal:]:
            assert len(text.splitlines()) == 2  # in a pipe no line is wrapped
