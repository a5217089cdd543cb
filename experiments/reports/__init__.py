"""Tables, figures, pages and comparisons of runs."""
# ruff: noqa: F401  names for the rooms above

from .figures import (
    draw_curves,
    draw_fits,
    facets,
    heat_map,
    label_outer,
    legend,
    looks_of,
    panels,
    smoothing_verdicts,
    subplots,
)
from .number_labels import labels
from .predictions import Claim, half_width, judge, judge_and_print, mean_of, of_interval
