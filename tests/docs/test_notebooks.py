"""Notebooks: the files are in jupytext's format. The build of the documentation executes them."""

import re

import jupytext
import pytest
from paths import ROOT

NOTEBOOKS = sorted((ROOT / "experiments" / "notebooks").glob("*.py"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_has_the_format_of_jupytext(path):
    text = path.read_text(encoding="utf-8")
    notebook = jupytext.reads(text, fmt="py:percent")
    assert jupytext.writes(notebook, fmt="py:percent").rstrip("\n") == text.rstrip("\n")
    assert notebook.metadata["kernelspec"]["name"] == "python3"
    first, *others = notebook.cells
    assert first.cell_type == "markdown"
    assert first.source.startswith("# ")
    headings = [cell.source for cell in others if cell.cell_type == "markdown"]
    assert not any(re.match(r"# ", source) for source in headings)
    assert "ak.plot.interact(draw, " in notebook.cells[-1].source


def test_notebooks_are_numbered_in_hundreds():
    numbers = [path.stem.split("_")[0] for path in NOTEBOOKS]
    assert len(numbers) >= 11
    assert numbers[0] == "000"
    assert all(re.fullmatch(r"\d+00", number) for number in numbers)
    assert len(set(numbers)) == len(numbers)
