"""CSV files of users: what is read and refused, and the place that an error names."""

import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from marks import slow
from refusals import assert_raises
from small_configs import CSV, FIT_OF_CSV

import attnkernel as ak
from experiments.__main__ import main


@pytest.fixture
def error_line(tmp_path, capsys):
    """The one line that a config with this file prints: exit code 2 and nothing else."""

    def show(*overrides):
        (tmp_path / "config.yaml").write_text(FIT_OF_CSV)
        code = main(["show", "config.yaml", *overrides])
        out, err = capsys.readouterr()
        assert (code, out) == (2, "")
        (line,) = err.splitlines()
        assert line.startswith("config.yaml:2: data: ")
        return line

    return show


def assert_names(line, *fragments):
    assert [fragment for fragment in fragments if fragment not in line] == []


# --- what is read ---


SAME_NUMBERS = {
    "plain": "a,b\n1,2\n2.5,3\n-3e0,5\n",
    "byte order mark": "\ufeffa,b\n1,2\n2.5,3\n-3e0,5\n",
    "spaces": " a , b \n 1 , 2 \n2.5,3\n-3e0,5\n",
    "quotes": '"a","b"\n"1","2"\n"2.5",3\n-3e0,"5"\n',
    "blank lines": "a,b\n\n1,2\n2.5,3\n\n  \n-3e0,5\n\n",
    "windows line ends": "a,b\r\n1,2\r\n2.5,3\r\n-3e0,5\r\n",
    "another column is text": "b,text,a\n2,anything,1\n3,,2.5\n5,nan,-3e0\n",
    "quoted separators": 'b,text,a\n2,"a, b",1\n3,"two\nlines",2.5\n5,"""",-3e0\n',
}


@pytest.mark.parametrize("way", SAME_NUMBERS)
def test_ways_of_writing_the_same_numbers(written, way):
    data = ak.data.read_csv(written(SAME_NUMBERS[way]), x="a", y="b")
    np.testing.assert_array_equal(data.x, [[1.0], [2.5], [-3.0]])
    np.testing.assert_array_equal(data.y, [2.0, 3.0, 5.0])
    assert (data.x_names, data.y_name) == (("a",), "b")


LONG_CELL = "a,b,text\n1,2,x\n2,3,x\n3,4," + "x" * 200_000 + "\n"
READ = {  # the file, x, the names of its axes, and the first rows
    "order": (CSV, ["c", "a"], {}, ("c", "a"), [[0.5, 1], [1.5, 2]]),
    "names": (CSV, "a", {"a": "age (years)"}, ("age (years)",), [[1], [2]]),
    "one of two inputs constant": ("a,b,c\n1,2,0\n2,3,0\n3,4,0\n", "ac", {}, ("a", "c"), [[1, 0]]),
    "long cell": (LONG_CELL, "a", {}, ("a",), [[1], [2], [3]]),
    "unused column": (CSV.replace("1.5", "x"), "a", {}, ("a",), np.arange(1, 9)[:, None]),
}


@pytest.mark.parametrize("case", READ)
def test_inputs_are_read_with_their_names(written, case):
    content, x, names, x_names, rows = READ[case]
    data = ak.data.read_csv(written(content), x=list(x), y="b", names=names)
    np.testing.assert_array_equal(np.asarray(data.x)[: len(rows)], np.array(rows, np.float32))
    assert (data.x_names, data.y_name) == (x_names, "b")


def test_numbers_keep_their_digits_in_float64(written, x64):
    data = ak.data.read_csv(written("a,b\n0.1,1\n0.2,2\n0.30000000000000004,3\n"), x="a", y="b")
    assert np.asarray(data.x)[:, 0].tolist() == [0.1, 0.2, 0.1 + 0.2]


# --- what is refused ---


def test_missing_file_is_reported_with_the_directory(error_line, tmp_path):
    assert_names(error_line(), "no file mine.csv", str(tmp_path))


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_fewer_than_three_rows_are_refused(written, error_line, rows):
    written("a,b\n" + "1,2\n2,3\n"[: 4 * rows])
    assert_names(error_line(), f"mine.csv has {rows} row", "at least 3")


@pytest.mark.parametrize(
    ("cell", "came"),
    [
        *(
            (cell, f"'{cell}'")
            for cell in ("nan", "NA", "inf", "-inf", "1e400", "tall", "1_0", "0x10")
        ),
        *(("", "an empty cell"), ("  ", "an empty cell"), ('"1,5"', "'1,5'")),
    ],
)
def test_cell_that_is_no_number_is_reported_with_row_line_and_column(
    written, error_line, cell, came
):
    written(f"a,b,c\n1,2,3\n\n2,3,4\n\n\n3,{cell},5\n4,5,6\n")
    place = "mine.csv, row 3 (line 7), column 'b'"
    assert_names(error_line(), place, "finite number", f"got {came}")


def near(start, step, rows):
    """A file of inputs from `start` on, that many steps apart."""
    return "a,b\n" + "".join(f"{start + i * step},{i}\n" for i in range(rows))


KNOWN = "no column for ", "'a', 'b', 'c'"
FLOAT32 = ["precision=float32"]
REFUSED = {  # the file, overrides of the config, and what the error says
    "directory": (CSV, ["data.path=."], ". is a directory"),
    "no path": (CSV, ['data.path=""'], "is a directory"),
    "path below a file": (CSV, ["data.path=mine.csv/below.csv"], "mine.csv/below.csv"),
    "long path": (CSV, ["data.path=" + "x" * 300], "xxx"),
    "empty": ("", [], "mine.csv is empty", "header"),
    "unknown input": (CSV, ["data.x=age"], "'age';", *KNOWN),
    "unknown label": (CSV, ["data.y=age"], "'age';", *KNOWN),
    "semicolons": (CSV.replace(",", ";"), [], "'a;b;c'"),
    "word": (CSV.replace("1.5", "x"), ["data.x=[a, c]"], "row 2 (line 3), column 'c'", "'x'"),
    "long row": (CSV + "1,2,3,4\n", [], "mine.csv, row 9 (line 10): ", "4 cells", "3"),
    "unclosed quote": ('a,b,c\n1,2,3\n"2,3,4\n3,4,5\n4,5,6\n', [], "mine.csv, line 3"),
    "constant": ("a,b\n1,2\n1,3\n1,4\n", ["data.x=a"], "constant", "[1.0]"),
    "constant in float32": (near(1e9 + 1, 1, 3), FLOAT32, "different numbers become 1 in float32"),
    "equal in float32": (near(1000, 1e-6, 100), FLOAT32, "'a'", "100 different numbers become 3"),
    "beyond float32": ("a,b\n1,1\n2,1e39\n3,3\n", FLOAT32, "row 2 (line 3), column 'b'", "1e+39"),
    "label as input": (CSV, ["data.x=b"], "'b' is both input and label"),
    "column twice": ("a,a,b\n1,2,3\n2,3,4\n3,3,3\n", [], "'a'", "twice"),
    "not UTF-8": (b"a,b\n1,2\n\xe9,3\n", [], "mine.csv is not UTF-8", "byte 8"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_file_or_column_is_refused(written, error_line, case):
    content, overrides, *fragments = REFUSED[case]
    written(content)
    assert_names(error_line(*overrides), *fragments)


def test_at_least_one_input_is_needed():
    assert_raises(r"at least one input", ak.data.read_csv, "mine.csv", x=[], y="b")


# --- words, devices, large files ---


def test_words_become_codes_only_where_asked(tmp_path):
    path = tmp_path / "words.csv"
    path.write_text("a,kind,y\n1,red,1\n2, blue ,2\n3,red,3\n4,green,5\n")
    data = ak.data.read_csv(path, x=("a", "kind"), y="y", categories=("kind",))
    np.testing.assert_array_equal(np.asarray(data.x)[:, 1], [2, 0, 2, 1])
    assert data.categories == (None, ("blue", "green", "red"))
    assert ak.data.read_csv(path, x="a", y="y").categories == ()


def test_devices_and_pipes_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (Path("/dev/zero"), tmp_path / "pipe"):
        assert_raises(r"no regular file", ak.data.read_csv, path, x="x", y="y")


@pytest.mark.slow
def test_a_file_of_one_endless_line(tmp_path):
    (tmp_path / "long.csv").write_bytes(b"x,y\n1,2\n" + b"3" * (2**24 + 1))
    with pytest.raises(ValueError, match=r"long\.csv, line 3: more than 16777216 characters"):
        ak.data.read_csv(tmp_path / "long.csv", x="x", y="y")
    (tmp_path / "open.csv").write_bytes(b'x,y\n1,2\n"3' + b"\n,\n" * (2**24 // 3 + 1))
    assert_raises(r"line 3: not CSV .*quote", ak.data.read_csv, tmp_path / "open.csv", x="x", y="y")


@pytest.mark.slow
def test_memory_of_reading_a_large_file_is_as_documented(tmp_path):
    rows, line = 4000, "%d,0.5,some more words that nobody asked for\n"
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
    assert peak < 48 * 2 * rows + 2**18  # numbers, their lines, sorted copies, arrays of JAX


def test_the_byte_that_is_no_utf8_is_found_beyond_the_first_block(tmp_path):
    text = b"x,y,z\n" + (b"1,2," + b"3" * 10_000 + b"\n") * 120 + "ä".encode()
    (tmp_path / "a.csv").write_bytes(text[:-1] + b"\n")
    assert_raises(rf"byte {len(text) - 2}\)", ak.data.read_csv, tmp_path / "a.csv", x="x", y="y")


@pytest.mark.parametrize(
    "name",
    [
        "$x_{$",  # broken mathematics
        "[/b]",  # markup of the terminal
        *(slow(name) for name in ("price [$]", "from $ to $", "größe", "a\\b", "x^2")),
    ],
)
def test_any_column_name_can_be_drawn(written, tmp_path, name):
    written(CSV.replace("a,b", f"{name},b"))
    source = f"{{source: csv, path: mine.csv, x: '{name}', y: b}}"
    (tmp_path / "config.yaml").write_text(f"study: data\ndata: {source}\n")
    assert main(["run", "config.yaml", "--quiet", "--out", "out"]) == 0
