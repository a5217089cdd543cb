"""The table of sequence layers: each of its lines runs on the arrays that the page names."""

import re

import jax
import numpy as np
from paths import DOCS

PAGE = (DOCS / "sequence_layers.md").read_text("utf-8")


def test_each_line_of_the_table_runs():
    cells = re.findall(r"^```\{code-cell\}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| ([^|`]+) \|.*\| `([^`]+)` \|$", PAGE, re.MULTILINE)
    assert len(rows) == 14

    @jax.jit
    def run_lines():
        names = {}
        exec(cells[0], names)
        return names["v"], {layer: eval(line, names) for layer, line in rows}

    with jax.numpy_rank_promotion("allow"):  # as users have it
        v, found = jax.tree.map(np.asarray, run_lines())
    for layer, out in found.items():
        assert out.shape == v.shape, layer
        assert np.isfinite(out).all(), layer
    layers = list(found)
    for i, layer in enumerate(layers):  # no two lines are the same layer
        for other in layers[:i]:
            assert np.abs(found[layer] - found[other]).max() > 1e-3, (layer, other)
