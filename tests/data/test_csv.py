"""Users' CSV files: what is read, what is refused and with which words, and fits to them."""

import json
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import attnkernel as ak
from experiments.__main__ import main

GOOD = "a,b,c\n1,2,0.5\n2,3,1.5\n3,5,0.0\n4,4,2.5\n5,4.5,1.0\n6,6,2.0\n7,5.5,0.2\n8,7,1.2\n"
CONFIG = """\
study: leave_one_out
data:
  source: csv
  path: mine.csv
  x: a
  y: b
starts: 2
grid: 20
"""
HOLDOUT = CONFIG.partition("starts")[0].replace("leave_one_out", "holdout") + (
    "training: {steps: 4}\nhold_out: [1, 0.5]\n"
)


@pytest.fixture(autouse=True)
def _at_home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def written(tmp_path):
    def write(content):
        data = content if isinstance(content, bytes) else content.encode()
        (tmp_path / "mine.csv").write_bytes(data)
        return tmp_path / "mine.csv"

    return write


@pytest.fixture
def complaint(tmp_path, capsys):
    """The one line that a config with this file gives: exit code 2 and nothing else."""

    def complain(*overrides):
        (tmp_path / "config.yaml").write_text(CONFIG)
        code = main(["show", "config.yaml", *overrides])
        out, err = capsys.readouterr()
        assert (code, out) == (2, "")
        (line,) = err.splitlines()
        assert line.startswith("config.yaml:2: data: ")
        return line

    return complain


def check(line, *fragments):
    assert [fragment for fragment in fragments if fragment not in line] == []


# --- what is read ---


@pytest.mark.parametrize(
    "content",
    [
        "a,b\n1,2\n2.5,3\n-3e0,5\n",
        "a,b\n1,2\n2.5,3\n-3e0,5",
        "\ufeffa,b\n1,2\n2.5,3\n-3e0,5\n",
        " a , b \n 1 , 2 \n2.5,3\n-3e0,5\n",
        '"a","b"\n"1","2"\n"2.5",3\n-3e0,"5"\n',
        "a,b\n\n1,2\n2.5,3\n\n  \n-3e0,5\n\n",
        "\n\na,b\n1,2\n2.5,3\n-3e0,5\n",
        "a,b\r\n1,2\r\n2.5,3\r\n-3e0,5\r\n",
        "b,text,a\n2,anything,1\n3,,2.5\n5,nan,-3e0\n",
        'b,text,a\n2,"a, b",1\n3,"two\nlines",2.5\n5,"""",-3e0\n',
        "b,text,a\n2,one\u2028two,1\n3,one\x0ctwo,2.5\n5,x,-3e0\n",
    ],
    ids=[
        "plain",
        "no last newline",
        "byte order mark",
        "spaces",
        "quotes",
        "blank lines",
        "blank lines first",
        "windows line ends",
        "another column is text",
        "quoted separators",
        "odd line separators in text",
    ],
)
def test_ways_of_writing_the_same_numbers(written, content):
    data = ak.data.read_csv(written(content), x="a", y="b")
    np.testing.assert_array_equal(data.x, [[1.0], [2.5], [-3.0]])
    np.testing.assert_array_equal(data.y, [2.0, 3.0, 5.0])
    assert (data.x_names, data.y_name) == (("a",), "b")


def test_several_inputs_keep_the_order_they_are_named_in(written):
    data = ak.data.read_csv(written(GOOD), x=["c", "a"], y="b")
    np.testing.assert_array_equal(data.x[:2], np.array([[0.5, 1], [1.5, 2]], np.float32))
    assert data.x_names == ("c", "a")


def test_axes_can_be_named(written):
    data = ak.data.read_csv(written(GOOD), x="a", y="b", names={"a": "age (years)"})
    assert (data.x_names, data.y_name) == (("age (years)",), "b")


def test_numbers_keep_their_digits_in_float64(written, x64):
    data = ak.data.read_csv(written("a,b\n0.1,1\n0.2,2\n0.30000000000000004,3\n"), x="a", y="b")
    assert data.x[:, 0].tolist() == [0.1, 0.2, 0.1 + 0.2]


def test_one_constant_input_of_several_is_kept(written):
    data = ak.data.read_csv(written("a,b,c\n1,2,0\n2,3,0\n3,4,0\n"), x=["a", "c"], y="b")
    assert data.x.shape == (3, 2)


def test_more_text_than_a_cell_commonly_has_is_no_fault(written):
    content = "a,b,text\n1,2,x\n2,3,x\n3,4," + "x" * 200_000 + "\n"
    assert ak.data.read_csv(written(content), x="a", y="b").x.shape == (3, 1)


# --- what is refused ---


def test_missing_file_is_told_with_the_directory(complaint, tmp_path):
    check(complaint(), "no file mine.csv", str(tmp_path))


@pytest.mark.parametrize(
    ("path", "fragments"),
    [
        (".", (". is a directory",)),
        ('""', ("is a directory",)),
        ("mine.csv/below.csv", ("mine.csv/below.csv",)),
        ("x" * 300, ("xxx",)),
        ('"mine\\0.csv"', ("mine",)),
    ],
    ids=["directory", "nothing", "below a file", "too long a name", "null byte"],
)
def test_path_must_be_a_file(written, complaint, path, fragments):
    written(GOOD)
    check(complaint(f"data.path={path}"), *fragments)


@pytest.mark.parametrize("content", ["", "\n", "\n\n  \n", "\ufeff"])
def test_empty_file_is_refused(written, complaint, content):
    written(content)
    check(complaint(), "mine.csv is empty", "header")


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_fewer_than_three_rows_are_refused(written, complaint, rows):
    written("a,b\n" + "1,2\n2,3\n"[: 4 * rows])
    check(complaint(), f"mine.csv has {rows} row", "at least 3")


@pytest.mark.parametrize("override", ["data.x=age", "data.x=[a, age]", "data.y=age", "data.x=A"])
def test_missing_column_is_told_with_those_that_are_there(written, complaint, override):
    written(GOOD)
    column = "'A'" if override.endswith("A") else "'age'"
    check(complaint(override), f"no column {column};", "'a', 'b', 'c'")


def test_all_missing_columns_are_told_at_once(written, complaint):
    written(GOOD)
    check(complaint("data.x=[age, a]", "data.y=wage"), "'age', 'wage'")


def test_other_separator_is_told_as_one_long_column(written, complaint):
    written(GOOD.replace(",", ";"))
    check(complaint(), "'a;b;c'")


@pytest.mark.parametrize(
    ("cell", "came"),
    [
        ("nan", "'nan'"),
        ("NA", "'NA'"),
        ("inf", "'inf'"),
        ("-inf", "'-inf'"),
        ("1e400", "'1e400'"),
        ("tall", "'tall'"),
        ("", "an empty cell"),
        ("  ", "an empty cell"),
        ('"1,5"', "'1,5'"),
        ("1_0", "'1_0'"),
        ("0x10", "'0x10'"),
    ],
)
def test_cell_that_is_no_number_is_told_with_row_line_and_column(written, complaint, cell, came):
    written(f"a,b,c\n1,2,3\n\n2,3,4\n\n\n3,{cell},5\n4,5,6\n")
    check(complaint(), "mine.csv, row 3 (line 7), column 'b'", "finite number", f"got {came}")


def test_bad_cell_of_any_input_is_told(written, complaint):
    written(GOOD.replace("1.5", "x"))
    check(complaint("data.x=[a, c]"), "row 2 (line 3), column 'c'", "'x'")


def test_bad_cell_of_a_column_that_is_not_asked_for_is_no_fault(written):
    data = ak.data.read_csv(written(GOOD.replace("1.5", "x")), x="a", y="b")
    assert len(data.y) == 8


@pytest.mark.parametrize(
    ("row", "cells"), [("1,2,3,4", "4 cells"), ("1,2", "2 cells"), ("1", "1 cell")]
)
def test_ragged_row_is_told_with_its_line(written, complaint, row, cells):
    written(GOOD + row + "\n")
    check(complaint(), "mine.csv, row 9 (line 10): ", cells, "3")


def test_quote_that_never_ends_is_told_at_the_line_where_it_begins(written, complaint):
    written('a,b,c\n1,2,3\n"2,3,4\n3,4,5\n4,5,6\n')
    check(complaint(), "mine.csv, line 3")


@pytest.mark.parametrize(
    ("content", "override", "came"),
    [
        ("a,b\n1,2\n1,3\n1,4\n", "data.x=a", "[1.0]"),
        ("a,b,c\n1,2,3\n1,3,3\n1,4,3\n", "data.x=[a, c]", "[1.0, 3.0]"),
    ],
)
def test_constant_input_is_refused(written, complaint, content, override, came):
    written(content)
    check(complaint(override), "constant", came)


def test_input_that_is_constant_in_the_precision_of_the_run_is_refused(written, complaint):
    written("a,b\n1000000001,1\n1000000002,2\n1000000003,3\n")
    check(complaint("precision=float32"), "different numbers become 1 in float32")


def test_numbers_that_float32_cannot_tell_apart_are_refused(written, complaint):
    written("a,b\n" + "".join(f"{1000 + i / 1e6},{i}\n" for i in range(100)))
    check(complaint("precision=float32"), "'a'", "100 different numbers become 3", "float64")


def test_number_beyond_the_precision_of_the_run_is_refused(written, complaint):
    written("a,b\n1,1\n2,1e39\n3,3\n")
    check(complaint("precision=float32"), "row 2 (line 3), column 'b'", "1e+39")


@pytest.mark.parametrize("override", ["data.x=b", "data.x=[a, b]"])
def test_column_that_is_input_and_label_is_refused(written, complaint, override):
    written(GOOD)
    check(complaint(override), "'b' is both input and label")


def test_input_named_twice_is_refused(written, complaint):
    written(GOOD)
    check(complaint("data.x=[a, a]"), "'a'", "twice")


def test_column_that_the_header_has_twice_is_refused(written, complaint):
    written("a,a,b\n1,2,3\n2,3,4\n3,3,3\n")
    check(complaint(), "'a'", "twice")


def test_at_least_one_input_is_needed():
    with pytest.raises(ValueError, match="at least one input column"):
        ak.data.read_csv("mine.csv", x=[], y="b")


def test_file_must_be_utf8(written, complaint):
    written(b"a,b\n1,2\n\xe9,3\n")
    check(complaint(), "mine.csv is not UTF-8", "byte 8")


def test_hold_out_counts_the_rows_of_the_file(written, tmp_path, capsys):
    written(GOOD)
    (tmp_path / "config.yaml").write_text(HOLDOUT)
    assert main(["show", "config.yaml", "hold_out=[1, 8]"]) == 2
    check(capsys.readouterr().err, "hold_out.1: holding out 8 rows", "the data have 8", "1 to 7")


# --- fits ---


def bumps():
    """Two waves in a, on a slope in c, and noise: a lengthscale that data can tell."""
    rng = np.random.default_rng(0)
    a, c = rng.uniform(0.0, 10.0, 60), rng.uniform(0.0, 2.0, 60)
    b = np.sin(a) + 0.5 * c + 0.3 * rng.normal(size=60)
    rows = zip(a, b, c, strict=True)
    return "a,b,c\n" + "".join(f"{x:.6f},{y:.6f},{z:.6f}\n" for x, y, z in rows)


@pytest.mark.parametrize("columns", [["a"], ["a", "c"]], ids=["one input", "two inputs"])
@pytest.mark.parametrize("config", [HOLDOUT, CONFIG], ids=["holdout", "leave_one_out"])
def test_fit_to_a_file(written, tmp_path, config, columns):
    written(bumps())
    (tmp_path / "config.yaml").write_text(config)
    inputs = f"data.x=[{', '.join(columns)}]"
    assert main(["run", "config.yaml", "--quiet", "--out", "out", inputs]) == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["data"] == {"rows": 60, "inputs": columns, "label": "b"}
    fits = summary.get("fits", [summary])
    assert all(0 < fit["lengthscale"] < 10 for fit in fits)
    assert all(0 < fit.get("leave_one_out", fit.get("criterion")) < 2 for fit in fits)


def test_what_is_doubtful_in_a_fit_is_a_note_and_not_a_warning_of_python(written, tmp_path):
    written(GOOD)  # rising and no more: the lengthscale ends on a bound
    (tmp_path / "config.yaml").write_text(CONFIG)
    assert main(["run", "config.yaml", "--quiet", "--out", "out"]) == 0
    notes = json.loads((tmp_path / "out" / "summary.json").read_text())["notes"]
    assert any("lies on a bound" in note for note in notes)


@pytest.mark.parametrize(
    "name", ["price [$]", "[/b]", "$x_{$", "from $ to $", "größe", "a\\b", "x^2"]
)
def test_any_column_name_can_be_drawn(written, tmp_path, name):
    written(GOOD.replace("a,b", f"{name},b"))
    (tmp_path / "config.yaml").write_text(
        f"study: data\ndata: {{source: csv, path: mine.csv, x: '{name}', y: b}}\n"
    )
    assert main(["run", "config.yaml", "--quiet", "--out", "out"]) == 0


def test_words_become_codes_only_where_asked(tmp_path):
    path = tmp_path / "words.csv"
    path.write_text("a,kind,y\n1,red,1\n2, blue ,2\n3,red,3\n4,green,5\n")
    data = ak.data.read_csv(path, x=("a", "kind"), y="y", categories=("kind",))
    np.testing.assert_array_equal(data.x[:, 1], [2, 0, 2, 1])
    assert data.categories == (None, ("blue", "green", "red"))
    assert ak.data.read_csv(path, x="a", y="y").categories == ()
    with pytest.raises(ValueError, match=r"row 1 \(line 2\), column 'kind': expected a finite num"):
        ak.data.read_csv(path, x=("a", "kind"), y="y")
    with pytest.raises(ValueError, match="among the input columns 'a'; got 'kind'"):
        ak.data.read_csv(path, x="a", y="y", categories=("kind",))
    path.write_text("a,kind,y\n1,red,1\n2,,2\n3,red,3\n4,green,5\n")
    with pytest.raises(ValueError, match=r"row 2 \(line 3\), column 'kind': expected a word"):
        ak.data.read_csv(path, x=("a", "kind"), y="y", categories=("kind",))


def test_what_has_no_end_or_no_beginning_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (Path("/dev/zero"), tmp_path / "pipe"):
        with pytest.raises(ValueError, match="no regular file"):
            ak.data.read_csv(path, x="x", y="y")


def test_a_file_of_one_endless_line(tmp_path):
    (tmp_path / "long.csv").write_bytes(b"x,y\n1,2\n" + b"3" * 2**25)
    with pytest.raises(ValueError, match=r"long\.csv, line 3: more than 16777216 characters"):
        ak.data.read_csv(tmp_path / "long.csv", x="x", y="y")
    (tmp_path / "open.csv").write_bytes(b'x,y\n1,2\n"3' + b"\n,\n" * 2**23)
    with pytest.raises(ValueError, match=r"line 3: not CSV .*Is a quote not closed"):
        ak.data.read_csv(tmp_path / "open.csv", x="x", y="y")


def test_a_large_file_takes_the_memory_it_says(tmp_path):
    rows, line = 30_000, "%d,0.5,some more words that nobody asked for\n"
    with (tmp_path / "large.csv").open("w") as file:
        file.write("x,y,words\n")
        file.writelines(line % i for i in range(rows))
    ak.data.read_csv(tmp_path / "large.csv", x="x", y="y")  # what is compiled once
    tracemalloc.start()
    try:
        data = ak.data.read_csv(tmp_path / "large.csv", x="x", y="y")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert data.x.shape == (rows, 1)
    assert peak < 27 * 2 * rows + 2**18  # numbers, their lines, a sorted copy, arrays of JAX


def test_the_byte_that_is_no_utf8_is_found_beyond_the_first_block(tmp_path):
    text = b"x,y\n" + b"1,2\n" * 300_000 + "ä".encode()
    (tmp_path / "a.csv").write_bytes(text[:-1] + b"\n")
    with pytest.raises(ValueError, match=rf"byte {len(text) - 2}\)"):
        ak.data.read_csv(tmp_path / "a.csv", x="x", y="y")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x;y\n1,5;2,5\n", r"no column 'x', 'y'; its columns are 'x;y'. Separate them by commas."),
        ("x\ty\n1\t2\n", r"its columns are 'x\\ty'. Separate them by commas."),
        ('x,y\n"1,5",2\n', r"expected a finite number, got '1,5'. Write 1,5 as 1.5, and 1,500 as"),
        ('x,y\n"-1.234,5",2\n', r"got '-1.234,5'. Write 1,5 as 1.5"),
        ("x,y\n1 m,2\n", r"got '1 m'. Drop or fill that row"),
        ("z,w\n1,2\n", r"its columns are 'z', 'w'.$"),
    ],
)
def test_other_separators_and_decimal_marks_are_named(tmp_path, text, message):
    path = tmp_path / "data.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        ak.data.read_csv(path, x="x", y="y")
