"""How the site is built: `sphinx-build -W --keep-going -n docs/source docs/_build/html`.

It executes no cell: pages show the outputs that `docs/write.py` wrote into `docs/*.md`.
"""

import logging
import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE.parent / "extensions")]

# The interactive pages compile for longer than they compute.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

import attnkernel  # noqa: E402

logging.basicConfig(level=logging.WARNING)  # before a11y_pygments, which shows INFO of all packages

project = "attnkernel"
author = "The attnkernel authors"
copyright = "The attnkernel authors, Apache 2.0"
version = release = attnkernel.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "markdown_docstrings",
    "names",
    "pages",
    "templates",
]

nitpicky = True
nitpick_ignore = [("py:class", "eqx.AbstractVar")]  # of Equinox, whose pages are not linked

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3
notebooks = HERE / "notebooks"  # Sphinx finds pages by their files; `pages` fills them
shutil.rmtree(notebooks, ignore_errors=True)
notebooks.mkdir()
for notebook in (ROOT / "experiments" / "notebooks").glob("*.py"):
    (notebooks / f"{notebook.stem}.md").touch()

autodoc_default_options = {
    "members": True,
    "member-order": "bysource",
    "special-members": "__call__",
}
autodoc_inherit_docstrings = False  # what a method is, its class says once
autodoc_preserve_defaults = True
autodoc_typehints = "none"  # signatures come from `names`, as they are written
python_maximum_signature_line_length = 72
toc_object_entries_show_parents = "hide"

# one file, which draws formulas without a font or a word from elsewhere
MATHJAX = Path(find_spec("sphinx-mathjax-offline").submodule_search_locations[0])
mathjax_path = "tex-svg.js"
mathjax3_config = {"options": {"enableMenu": False}}

html_theme = "furo"
html_title = "attnkernel"
html_static_path = ["_static", str(MATHJAX / "static" / "mathjax" / "tex-svg.js")]
html_css_files = ["style.css"]
html_copy_source = False
html_show_sphinx = False
