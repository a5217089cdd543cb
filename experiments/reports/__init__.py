"""Tables, figures, pages and comparisons of runs."""
# ruff: noqa: F401  names for the rooms above

from .figures import (
    draw_curves,
    draw_fits,
    heat_map,
    label_outer,
    legend,
    panels,
    smoothing_verdicts,
    subplots,
)
from .number_labels import labels
from .predictions import Claim, half_width, judge, mean_of, of_interval, write_predictions
