"""README.md is what its template renders, is short, and its code prints what it says."""

import matplotlib.pyplot as plt
import pytest
from markdown_it import MarkdownIt
from paths import DOCS, ROOT

README = ROOT / "README.md"


def fences():
    return [t for t in MarkdownIt().parse(README.read_text("utf-8")) if t.type == "fence"]


def test_readme_is_rendered_from_its_template(load):
    """After a change of the template or of a kept run: `python docs/readme.py`."""
    assert README.read_text("utf-8") == load(DOCS / "readme.py").readme()


def test_readme_is_short_and_begins_with_code():
    assert len(README.read_text("utf-8").splitlines()) <= 120
    (code,) = (token for token in fences() if token.info == "python")
    assert code.map[1] <= 40
    assert code.content.rstrip().endswith("plt.show()")


def test_readme_has_two_commands():
    """`.ci/run` finds them by these words."""
    commands = [
        c for c in README.read_text("utf-8").splitlines() if c.startswith("python3 -m venv ")
    ]
    assert len(commands) == 2
    assert "-m experiments run configs/" in commands[0]
    assert commands[1].endswith("-m pytest -q -n 2")


@pytest.mark.slow
def test_readme_code_draws_and_prints_what_the_readme_shows(capsys, monkeypatch):
    code, output, *_ = (token for token in fences() if token.info in ("python", "text"))
    assert (code.info, output.info) == ("python", "text")
    figures = []
    monkeypatch.setattr(plt, "show", lambda: figures.extend(plt.get_fignums()))
    plt.close("all")
    exec(code.content, {})
    plt.close("all")
    assert len(figures) == 1
    assert capsys.readouterr().out == output.content
