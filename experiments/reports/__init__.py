"""Tables, figures, pages and comparisons of runs."""
# ruff: noqa: F401  names for the rooms above

from .figures import (
    draw_dots,
    draw_fits,
    draw_heat_maps,
    draw_lines,
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
    ticks_at,
)
from .number_labels import labels
