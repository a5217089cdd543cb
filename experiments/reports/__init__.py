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
)
from .intervals import half_width, mean_of, of_interval
from .number_labels import labels
from .predictions import Claim, judge, write_predictions
