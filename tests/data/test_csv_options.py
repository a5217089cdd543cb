"""Options of CSV files: delimiters, decimal commas, gaps, dashes, words, dates, helpful errors."""

import gzip

import numpy as np
import pandas
import pytest
from refusals import assert_raises

import attnkernel as ak
from attnkernel._core.validation import OptionError
from attnkernel.data._csv import Options, read_file
from experiments.__main__ import main

SEMICOLONS = (
    "day;size;kind;y\n"
    "2021-03-01;small;oak;1,5\n"
    "2021-03-03;large;elm;2,25\n"
    "2021-03-02T12:00;;oak;3\n"
    "2021-02-28;middle;oak;NA\n"
    "2021-03-05T18:00;middle;ash;-4e-1\n"
    "2021-03-01;small;elm;0\n"
)
SIZES = ["small", "middle", "large"]
EXCEL = {"delimiter": ";", "decimal": ",", "missing": "drop"}


def read(path, x, **options):
    return ak.data.read_csv(path, x=x, y="y", **options)


def test_semicolons_decimal_commas_gaps_dates_and_words(written, x64):
    words = {"categories": {"size": SIZES}, "find_categories": True}
    data = read(written(SEMICOLONS), ("day", "size", "kind"), **words, **EXCEL)
    np.testing.assert_array_equal(data.x, [[0, 0, 2], [2, 2, 1], [4.75, 1, 0], [0, 0, 1]])
    np.testing.assert_array_equal(data.y, [1.5, 2.25, -0.4, 0])
    assert data.x_names == ("day (days since 2021-03-01)", "size", "kind")
    assert data.categories == (None, tuple(SIZES), ("ash", "elm", "oak"))
    assert data.ordered == (False, True, False)
    assert data.dropped == 2


def test_a_gap_in_a_column_that_is_not_requested_drops_no_row(written):
    data = read(written(SEMICOLONS.replace("NA", "9")), "day", **EXCEL)
    assert (data.dropped, len(data.y), data.categories, data.ordered) == (0, 6, (), ())


@pytest.mark.parametrize(
    ("dates", "cells"),
    [
        ((), ["2021-03-28", "2021-03-29T12:00:00", "2021-04-01 06:00"]),
        ((), ["2021-03-28T00:00+00:00", "2021-03-29T14:00+02:00", "2021-04-01T06:00Z"]),
        ({"x": None}, ["20210328", "2021-03-29T12:00:00", "2021-04-01 06:00"]),
        (["x"], ["20210328", "2021-03-29T12:00:00", "2021-04-01 06:00"]),
        ({"x": "%d.%m.%Y %H:%M"}, ["28.03.2021 00:00", "29.03.2021 12:00", "01.04.2021 06:00"]),
    ],
)
def test_dates_become_days_since_the_earliest(written, x64, dates, cells):
    rows = "".join(f"{cell},{i}\n" for i, cell in enumerate(reversed(cells)))
    data = read(written("x,y\n" + rows), "x", dates=dates, names={"x": "day"})
    np.testing.assert_allclose(np.asarray(data.x)[:, 0], [4.25, 1.5, 0.0], atol=1e-9)
    assert data.x_names == ("day (days since 2021-03-28)",)


def test_labels_may_be_dates(written):
    data = read(written("a,y\n1,2021-01-03\n2,2021-01-01\n3,2021-01-04\n"), "a")
    np.testing.assert_array_equal(data.y, [2, 0, 3])
    assert data.y_name == "y (days since 2021-01-01)"


def test_codes_that_are_numbers_are_categories_where_asked(written):
    path = written("a,kind,y\n1,10,1\n2,9,2\n3,10,3\n4,2,4\n")
    data = read(path, ("a", "kind"), categories=["kind"])
    np.testing.assert_array_equal(np.asarray(data.x)[:, 1], [2, 1, 2, 0])
    assert data.categories == (None, ("2", "9", "10"))
    assert read(path, ("a", "kind"), find_categories=True).categories == ()


def test_a_word_for_missing_that_is_a_given_level_is_a_word(written):
    path = written("a,land,y\n1,NA,1\n2,DE,2\n3,,3\n4,DE,4\n5,NA,5\n6,DE,6\n")
    data = read(path, ("a", "land"), categories={"land": ["DE", "NA"]}, missing="drop")
    np.testing.assert_array_equal(np.asarray(data.x)[:, 1], [1, 0, 0, 1, 0])
    assert (data.dropped, data.ordered) == (1, (False, True))
    data = read(path, ("a", "land"), categories={"land": None, "a": None}, missing="drop")
    assert (data.dropped, data.ordered) == (3, (False, False))


def test_errors_count_the_rows_that_were_left_out_too(written):
    rows = "x,y\n,1\n2,1\n,1\n,2\n3,1\n1,1e39\n"
    with pytest.raises(ValueError, match=r"row 6 \(line 7\), column 'y': 1e\+39 is too large"):
        read(written(rows), "x", missing="drop")


def test_marks_between_thousands_blanks_and_excels_first_line(written):
    blanks = "x;y\n1 234,5;1\n−2\u00a0500;2\n3\u202f000,0;4\n#NUM!;5\n"
    data = read(written(blanks), "x", thousands=" ", **EXCEL)
    np.testing.assert_array_equal(data.x[:, 0], [1234.5, -2500.0, 3000.0])
    assert data.dropped == 1
    for text, options in (
        ("sep=;\nx;y\n1;2\n2;3\n3;4\n", {}),
        ('"x" "y"\n1 2\n2 3\n3 4\n', {"delimiter": " "}),
        ('x, y\n"1", 2\n2, "3"\n3, 4\n', {}),
    ):
        np.testing.assert_array_equal(read(written(text), "x", **options).y, [2, 3, 4])


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16"])
def test_other_encodings_are_named_and_read(written, encoding):
    path = written("größe,y\n1,2\n2,3\n3,4\n".encode(encoding))
    with pytest.raises(OptionError, match=f"not UTF-8 text.*Try encoding='{encoding}'"):
        read(path, "größe")
    np.testing.assert_array_equal(read(path, "größe", encoding=encoding).y, [2, 3, 4])


def test_packed_files_and_workbooks(tmp_path, monkeypatch):
    with gzip.open(tmp_path / "a.csv.gz", "wt") as file:
        file.write("x,y\n1,2\n2,3\n3,4\n")
    np.testing.assert_array_equal(read(tmp_path / "a.csv.gz", "x").y, [2, 3, 4])
    for name, message in (("b.csv.gz", "gzip"), ("b.xlsx", "pandas|format")):
        (tmp_path / name).write_bytes(b"x,y\n1,2\n")
        assert_raises(message, read, tmp_path / name, "x")
    # pandas reads workbooks by packages that the tests do not need
    frame = pandas.DataFrame({"x": pandas.date_range("2020-01-01", periods=3), "y": [2.0, 3, 4]})
    monkeypatch.setattr(pandas, "read_excel", lambda path: frame)
    np.testing.assert_array_equal(read(tmp_path / "b.xlsx", "x").x[:, 0], [0, 1, 2])


@pytest.mark.parametrize(
    ("start", "sentence"),
    [
        (b"PK\x03\x04", r"a.csv is an Excel workbook or another ZIP archive.*NAME\.xlsx"),
        (b"PAR1\x15\x04", r"a Parquet file, not CSV: name it NAME\.parquet"),
        (b"\x1f\x8b\x08", r"compressed by gzip, not CSV: name it NAME\.csv\.gz"),
    ],
)
def test_files_of_other_formats_are_named_by_their_first_bytes(tmp_path, start, sentence):
    (tmp_path / "a.csv").write_bytes(start + bytes(range(256)) * 40)
    assert_raises(sentence, read, tmp_path / "a.csv", "x")


FAULTS = [
    ("x,y\n", {"missing": "drop"}, r"has 0 rows of data; a fit"),
    ("x,y\n1,2\n3,4\n,5\n", {"missing": "drop"}, r"2 rows of data, after 1 with missing"),
    ("x,y\n1,2\n,3\n", {}, r"row 2 \(line 3\), column 'x'.* an empty cell\. Try missing='drop'\."),
    ("x,y\n\n1,2\n,0\n3,no\n", {"missing": "drop"}, r"row 3 \(line 5\), column 'y'.* 'no'"),
    ("x,y\noak,2\n", {}, r"expected a finite number, got 'oak'\..* Try categories=\['x'\]\."),
    ("x,y\noak,2\n1,2\n", {"find_categories": True}, r"as in the rows before; got the number '1'"),
    ("x,y\n1,oak\n", {"find_categories": True}, r"The label is a number"),
    ("x,y\noak,1\nelm,2\nash,3\n", {"find_categories": True}, r"another word in each of its 3"),
    ("x;y\n1.5;2\n", EXCEL, r"'1\.5'\. Try decimal='\.'\."),
    ("x;y\n1.500,5;2\n", EXCEL, r"'1\.500,5'\. Try thousands='\.'\.$"),
    ("x;y\n1,5;2,5\n", {}, r"'x', 'y';.*'x;y'\. Try delimiter=';'\.$"),
    ("x\ty\n1\t2\n", {}, r"'x\\ty'\. Try delimiter='\\t'\.$"),
    ('x,y\n"-1.234,5",2\n', {}, r"'-1\.234,5'\. Try decimal=','\.$"),
    ('x,y\n"1,250",2\n', {}, r"If ',' is .*\. Try decimal=',' or thousands=','"),
    ("x;y\n1 234,5;2\n", {"delimiter": ";", "thousands": " "}, r"Try decimal=','\.$"),
    ("x,y\n2019-01,2\n", {}, r"Try dates=\{'x': '%Y-%m'\}\.$"),
    ("x,y\n1/23/20,2\n", {}, r"Try dates=\{'x': '%m/%d/%y'\}\.$"),
    ("x,y\nJan 1 2000,2\n", {"find_categories": True}, r"'%b %d %Y'\} or categories=\['x'\]\.$"),
    ("x,y\n1,2\n#DIV/0!,2\n", {}, r"'#DIV/0!'\. Try missing='drop'"),
    ('"x" "y"\n"1" 1 2\n', {"delimiter": " "}, r"Names of rows, as R's write\.table writes them"),
    ("x,y\n1,2\n", {"encoding": "utf-9"}, r"encoding must be one of Python.*'utf-9'"),
    ("x,y\n1,2\n", {"thousands": "."}, r"thousands and decimal must differ; both are '\.'"),
    ("x,y\n12%,2\n", {}, r"'12%'\. Write the number alone, without its unit\.$"),
    ("x,y\n2021-01-02,1\n1/3/2021,2\n", {}, r"row 2.*as in the rows before.*in one format\.$"),
    ("x,y\n1,5,2\n", {}, r"3 cells where the header has 2\. Is the delimiter ','"),
    ("x,y\n28.03.2021,2\n", {"find_categories": True}, r"Try dates=\{'x': '%d\.%m\.%Y'\}\."),
    ("x,y\n3/28/2021 10:00,2\n", {}, r"Try dates=\{'x': '%m/%d/%Y %H:%M'\}\."),
    ("x,y\n28/3/2021,2\n", {"dates": ["x"]}, r"such as 2021-03-28; got .* '%d/%m/%Y'\}\."),
    ("x,y\n2021-03-28,2\n2021-03-32,2\n", {}, r"row 2 .*expected a date such as.* '2021-03-32'\.$"),
    ("x,y\n2021-03-28,2\n,2\n", {}, r"expected a date, got an empty cell\. Try missing='drop'"),
    ("x,y\n2021-03-28T00:00Z,2\n2021-03-29,2\n", {}, r"'2021-03-29' has no time zone, unlike"),
    ("x,y\n28.3.2021,2\n", {"dates": {"x": "%m.%d.%Y"}}, r"of the form '%m\.%d\.%Y'; got.*Try"),
    ("x,y\noak,2\nelf,3\n", {"categories": {"x": ["elm", "oak"]}}, r"'elm', 'oak'; got 'elf'\."),
    ("x,y\noak,2\n,3\n", {"categories": ["x"]}, r"expected a word, got an empty .*missing='drop'"),
    ("x,y\ninf,2\n", {"missing": "drop", "find_categories": True}, r"got 'inf'\. Drop or fill"),
]


@pytest.mark.parametrize(("content", "options", "message"), FAULTS)
def test_errors_say_which_option_helps(written, content, options, message):
    assert_raises(message, read, written(content), "x", **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delimiter": ";;"}, "delimiter must be one character"),
        ({"delimiter": ",", "decimal": ","}, "delimiter and decimal must differ"),
        ({"categories": {"x": "oak"}}, "must list the words of 'x'"),
        ({"categories": {"x": ["oak"]}}, "must list the words of 'x' in order, two"),
        ({"categories": {"x": ["oak", "oak"]}}, "'oak' twice"),
        ({"categories": ["y"]}, "among the input columns 'x'; got 'y'"),
        ({"dates": ["z"]}, "dates must be among the columns 'x', 'y'; got 'z'"),
        ({"dates": {"x": 3}}, "dates must map columns to formats"),
        ({"categories": ["x"], "dates": ["x"]}, "'x' is named in both"),
    ],
)
@pytest.mark.usefixtures("as_users_run_it")
def test_options_that_do_not_go_together_are_refused(written, options, message):
    assert_raises(message, read, written("x,y\n1,2\n2,3\n3,4\n"), "x", **options)


CONFIG = "study: leave_one_out\ndata: {source: csv, path: mine.csv, x: [a], y: b}\n"


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        ("a;b\n1;2\n", 'Try data.delimiter: ";".'),
        ("a,b\n28.3.2021,2\n", 'Try data.dates: {"a": "%d.%m.%Y"}.'),
        ("a,b\noak,2\nelm,3\noak,4\n", "study: regression"),
    ],
)
def test_errors_of_configs_name_the_field_that_helps(written, capsys, content, hint):
    written(content).with_name("config.yaml").write_text(CONFIG)
    assert main(["show", "config.yaml"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("config.yaml:2: data")
    assert hint in err


def read_cells(tmp_path, cells, **options):
    """A file with this column x, and 1, 2, ... as y."""
    lines = [f'"{cell}";{i + 1}' for i, cell in enumerate(cells)]
    (tmp_path / "some.csv").write_text("\n".join(["x;y", *lines]) + "\n", encoding="utf-8")
    return ak.data.read_csv(tmp_path / "some.csv", x="x", y="y", delimiter=";", **options)


def test_dashes_are_missing_among_numbers_and_dates(tmp_path):
    for cells in (["-", "1", "2", "?", "4"], ["–", "2021-01-02", "2021-01-03", "-", "2021-01-05"]):
        data = read_cells(tmp_path, cells, missing="drop")
        x = np.asarray(data.x)[:, 0]
        np.testing.assert_array_equal(x - x[0], [0, 1, 3])
        np.testing.assert_array_equal(data.y, [2, 3, 5])
        assert data.dropped == 2
        with pytest.raises(OptionError, match=r"got '.'\. Try missing='drop'"):
            read_cells(tmp_path, cells)


def test_dashes_are_words_among_words(tmp_path):
    data = read_cells(tmp_path, ["+", "-", "+", "-"], categories=["x"], missing="drop")
    assert (data.dropped, data.categories) == (0, (("+", "-"),))
    found = {"find_categories": True, "missing": "drop"}
    assert read_cells(tmp_path, ["yes", "-", "yes", "-"], **found).dropped == 0
    with pytest.raises(OptionError, match=r"row 2 .*'yes', and '-'.*Try categories=\['x'\]"):
        read_cells(tmp_path, ["-", "yes", "yes", "-"], **found)


OF_ROWS = """day;kind;who;w;y
2021-03-01;oak;a;1;1,5
2021-03-03;elm;b 2;0,5;2,25
x;y;z;0;1
2021-03-02;elm;a;2;NA
2021-02-28;ash;b 2;1;3
2021-03-01;oak;a;1;4
"""


def test_weights_and_clusters_are_of_the_rows_that_have_a_weight(written, x64):
    options = {"weights": "w", "clusters": "who", "find_categories": True}
    data = read(written(OF_ROWS), ("day", "kind"), **options, **EXCEL)
    np.testing.assert_array_equal(data.x, [[1, 2], [3, 1], [0, 0], [1, 2]])
    np.testing.assert_array_equal(data.weights, [1.0, 0.5, 1.0, 1.0])
    np.testing.assert_array_equal(data.clusters, [0, 1, 1, 0])
    assert (data.dropped, data.clusters.dtype) == (2, "int32")
    plain = read(written("x,y\n1,2\n2,3\n4,5\n"), "x")
    assert (plain.weights, plain.clusters) == (None, None)


ROLES = [
    ("2021-03-01;oak;a;1;1,5", {"weights": "day"}, "'day' is both input and weights"),
    ("2021-03-01;oak;a;1;1,5", {"weights": "y"}, "'y' is both label and weights"),
    ("2021-03-01;oak;a;1;1,5", {"weights": "w", "clusters": "w"}, "is both weights and clusters"),
    ("2021-03-01;oak;a;1;1,5", {"clusters": "wo"}, "has no column for clusters: 'wo'"),
    ("2021-03-01;oak;a;-1;1,5", {"weights": "w"}, r"row 1 .*column 'w': expected a weight, a num"),
    ("2021-03-01;oak;a;;1,5", {"weights": "w", "missing": "error"}, "Try missing='drop'"),
    (
        "2021-03-01;oak;;1;1,5",
        {"clusters": "who", "missing": "error"},
        "expected a word, got an em",
    ),
]


@pytest.mark.parametrize(("line", "options", "sentence"), ROLES)
def test_columns_of_two_roles_and_wrong_weights_are_refused(written, line, options, sentence):
    text = OF_ROWS.replace("2021-03-01;oak;a;1;1,5", line)
    assert_raises(sentence, read, written(text), ("day",), **EXCEL | options)


def test_rows_of_another_file_have_the_days_and_codes_of_the_first(written, tmp_path, x64):
    options = Options(("day", "kind"), "y", (), True, (), ";", ",", "", "drop", "utf-8")
    file = read_file(written(OF_ROWS.replace("x;y;z;0;1\n", "")), options, {})
    (tmp_path / "new.csv").write_text(
        "kind;more;day\noak;1;2021-03-05T12:00\n;2;2021-03-01\nelm;3;NA\nash;4;2020-02-28\n"
    )
    new = file.read_new(tmp_path / "new.csv")
    np.testing.assert_array_equal(
        new.numbers, [[5.5, 2], [1, np.nan], [np.nan, 1], [-366, 0]], strict=True
    )
    assert (new.header[1], new.cells[2], new.dropped) == ("more", ["elm", "3", "NA"], 0)
    for text, sentence in (
        ("kind;day\nyew;2021-03-05\n", "expected one of 'ash', 'elm', 'oak', the words of the ro"),
        ("kind;day\noak;5.3.2021\n", "expected a date such as 2021-03-28, as in the rows before"),
        ("kind;day\noak\n", "row 1 .*1 cells where the header has 2"),
        ("kind,day\noak,2021-03-05\n", "has no column for x: .* It is read with the options of"),
    ):
        (tmp_path / "new.csv").write_text(text)
        assert_raises(sentence, file.read_new, tmp_path / "new.csv")
