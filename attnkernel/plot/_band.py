"""A band alone, with the curve in its middle: of a derivative, or of a fit along one column."""

import numpy as np
from matplotlib.axes import Axes

from .._core.pandas_frames import display_names
from .._core.validation import require_instance, require_string
from ..inference import Bands
from ._fit import require_finite_limits, shade
from ._style import BLUE, ORANGE, axes, ink, legend, literal


def band(bands: Bands, *, ax: Axes | None = None, label: str | None = None) -> Axes:
    r"""The centre of a band over x, and the area between its limits, without observations.

    For a derivative the line of zero slope is drawn too. Of inputs with several columns one must
    vary, and the others be constant.

    ```python
    >>> data = ak.data.load("faithful")
    >>> fit = ak.fit(ak.KernelRegression(ak.Gaussian(0.5), order=1), data.x, data.y)
    >>> ax = ak.plot.band(ak.bands(fit, ak.plot.grid(data.x), derivative=1))
    >>> ax.get_ylabel()
    'first derivative of y'
    ```

    **Arguments:**

    - `bands`: a result of `ak.bands` or `ak.conformal`, of one label per row.
    - `label`: of the centre, in the legend. Default: `estimate`.

    **Raises:** `ValueError` for several labels, limits of infinite width, and inputs of which not
    exactly one column varies.
    """
    require_instance("bands", bands, Bands, "ak.bands(result, x_new)")
    if label is not None:
        require_string("label", label)
    x = np.asarray(bands.x)
    varying = np.flatnonzero(np.ptp(x, axis=0) > 0) if len(x) else np.array([], int)
    if bands.centre.ndim != 1 or len(varying) != 1:
        raise ValueError(
            f"A band is drawn for one label, along the one column of x that varies; got limits of "
            f"shape {bands.centre.shape}, and {len(varying)} columns that vary."
        )
    require_finite_limits(bands)
    column, ax = int(varying[0]), axes(ax)
    along = x[:, column]
    order = np.argsort(along)
    if bands.estimated:
        ax.axhline(0.0, color=ink(), linewidth=0.6)
    centre = np.asarray(bands.centre)[order]
    ax.plot(along[order], centre, color=ORANGE, label=label or "estimate", zorder=3)
    shade(along, bands, ax, BLUE, "-", zorder=0.1)
    legend(ax)
    name = "y" if bands.y_name is None else str(bands.y_name)
    of = f"{bands.estimated} {'in' if bands.derivative is None else 'of'} {name}"
    of = of if bands.estimated else name
    names = display_names(bands.x_names, x.shape[1])
    ax.set(xlabel=literal(names[column]), ylabel=literal(of))
    return ax
