"""How the documentation is built: `sphinx-build -W --keep-going -n docs docs/_build/html`."""

import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT), str(HERE / "extensions")]

import attnkernel  # noqa: E402

project = "attnkernel"
author = "The attnkernel authors"
copyright = "The attnkernel authors, Apache 2.0"
version = release = attnkernel.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "markdown_docstrings",
    "names",
    "templates",
]
exclude_patterns = ["_build", "*.py", "extensions", "templates"]
nitpicky = True
nitpick_ignore = [("py:class", "eqx.AbstractVar")]  # of Equinox, whose pages are not linked

# Markdown, and notebooks in py:percent, which run at each build: an error in one fails it
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
nb_custom_formats = {".py": ["jupytext.reads", {"fmt": "py:percent"}]}
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 600
nb_merge_streams = True
nb_code_prompt_show = "Show the code"
nb_code_prompt_hide = "Hide the code"
nb_output_stderr = "warn"  # a warning on a page is a warning of the build
os.environ["PYTHONWARNINGS"] = "default"  # and pages show warnings of every category
notebooks = HERE / "notebooks"
shutil.rmtree(notebooks, ignore_errors=True)
notebooks.mkdir()
for notebook in sorted((ROOT / "experiments" / "notebooks").glob("*.py")):
    shutil.copy(notebook, notebooks)

# These compute for longer than they compile: they are optimised even where the environment turns
# optimisations off (CPU seconds: 200_hold_out 33 instead of 150, 600_learned_projections 38
# instead of 41, 1200_learned_window 51 instead of 86).
HEAVY = tuple(
    f"notebooks/{name}"
    for name in ("200_hold_out", "600_learned_projections", "1200_learned_window")
)
OPTIMISATIONS_OFF = os.environ.get("JAX_DISABLE_MOST_OPTIMIZATIONS", "0")


def choose_optimisations(app, docname, source):
    """Sets the environment of the process that will execute the page."""
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "0" if docname in HEAVY else OPTIMISATIONS_OFF


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


def setup(app):
    app.connect("source-read", choose_optimisations)
