"""Every example in a docstring of the package runs, and prints what it says.

An example is a fenced block of Python. In a block with `>>>` the printed values are compared, `...`
standing for any text; a block without `>>>` must run.
"""

import ast
import doctest
import inspect
import operator
import re
import textwrap

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
import pytest
from paths import ROOT

import attnkernel as ak

NAMES = {"ak": ak, "eqx": eqx, "jax": jax, "jnp": jnp, "np": np, "optax": optax, "plt": plt}
FENCED = re.compile(r"^( *)```python\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef


def has_example(text):
    return ">>>" in text or "```python" in text


def docstrings_with_examples():
    """Yields the path, the qualified name and the docstring of everything that has an example."""
    for path in sorted((ROOT / "attnkernel").rglob("*.py")):
        module = path.relative_to(ROOT / "attnkernel").as_posix()
        stack = [(ast.parse(path.read_text("utf-8")), "")]
        while stack:
            node, name = stack.pop()
            text = ast.get_docstring(node) or ""
            if has_example(text):
                yield pytest.param(text, id=f"{module}:{name}".rstrip(":"))
            for child in node.body:
                if isinstance(child, DOCUMENTED):
                    stack.append((child, f"{name}.{child.name}".lstrip(".")))


def run(text):
    """Runs the examples of a docstring one after the other, with the same names; returns how many
    blocks and printed lines there are."""
    names = NAMES.copy()
    blocks = [block for _, block in FENCED.findall(text) if ">>>" not in block]
    for block in blocks:
        exec(textwrap.dedent(block), names)
    without_fences = re.sub(r"^ *```.*$", "", text, flags=re.MULTILINE)
    test = doctest.DocTestParser().get_doctest(without_fences, names, "example", None, None)
    report = []
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    runner = doctest.DocTestRunner(verbose=False, optionflags=flags)
    lines = runner.run(test, out=report.append).attempted
    assert not report, "".join(report)
    return len(blocks) + lines


@pytest.mark.slow
@pytest.mark.parametrize("text", list(docstrings_with_examples()))
def test_example_runs(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plt.switch_backend("agg")
    assert run(text) > 0
    plt.close("all")


def test_every_public_class_and_function_has_an_example(load):
    public = load(ROOT / "docs" / "extensions" / "names.py").public()
    parts = {name: operator.attrgetter(name.partition(".")[2])(ak) for name in public}
    documented = {
        name: part.__doc__ or ""
        for name, part in parts.items()
        if inspect.isfunction(part) or (inspect.isclass(part) and not issubclass(part, Exception))
    }
    assert "attnkernel.kernels.Radial" in documented
    assert [name for name, text in documented.items() if not has_example(text)] == []


@pytest.mark.parametrize(
    "text", ["```python\n>>> 2 + 2\n5\n```", "```python\nak.no_such_name\n```", ">>> 1 / 0\n0"]
)
def test_a_wrong_example_is_found(text):
    with pytest.raises((AssertionError, AttributeError)):
        run(text)
