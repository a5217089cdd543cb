"""Tables, figures, pages and comparisons of runs."""
# ruff: noqa: F401  names for the rooms above

from .figures import (
    draw_fits,
    facets,
    heat_map,
    label_outer,
    legend,
    lengths_axis,
    looks_of,
    panels,
    save_with_legend,
    smoothing_verdicts,
    subplots,
)
from .number_labels import labels
