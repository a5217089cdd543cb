"""Dashes in the cells of files: missing values, or words among words."""

import numpy as np
import pytest

import attnkernel as ak
from attnkernel.data._columns import OptionError


def read(tmp_path, cells, **options):
    """A file with this column x, and 1, 2, ... as y."""
    lines = [f'"{cell}";{i + 1}' for i, cell in enumerate(cells)]
    (tmp_path / "some.csv").write_text("\n".join(["x;y", *lines]) + "\n", encoding="utf-8")
    return ak.data.read_csv(tmp_path / "some.csv", x="x", y="y", delimiter=";", **options)


def test_dashes_are_missing_among_numbers_and_dates(tmp_path):
    for cells in (["-", "1", "2", "?", "4"], ["–", "2021-01-02", "2021-01-03", "-", "2021-01-05"]):
        data = read(tmp_path, cells, missing="drop")
        np.testing.assert_array_equal(
            np.asarray(data.x)[:, 0] - np.asarray(data.x)[0, 0], [0, 1, 3]
        )
        np.testing.assert_array_equal(data.y, [2, 3, 5])
        assert data.dropped == 2
        with pytest.raises(OptionError, match=r"got '.'\. Try missing='drop'"):
            read(tmp_path, cells)


def test_dashes_are_words_among_words(tmp_path):
    data = read(tmp_path, ["+", "-", "+", "-"], categories=["x"], missing="drop")
    assert (data.dropped, data.categories) == (0, (("+", "-"),))
    found = {"find_categories": True, "missing": "drop"}
    assert read(tmp_path, ["yes", "-", "yes", "-"], **found).dropped == 0
    with pytest.raises(OptionError, match=r"row 2 .*'yes', and '-'.*Try categories=\['x'\]"):
        read(tmp_path, ["-", "yes", "yes", "-"], **found)
