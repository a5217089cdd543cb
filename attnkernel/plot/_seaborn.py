"""The fit of each group and its band, as a statistic of seaborn.objects."""

from dataclasses import dataclass
from typing import Any

from seaborn.objects import Stat

from .._core.validation import as_integer, require_bool, require_instance, require_level
from ..models import Smoother
from ._smooth import fit_of_group
from ._style import grid


@dataclass
class Smooth(Stat):
    """A statistic of `seaborn.objects`: one fit for each group, or the band of the fit.

    The curve is that of `ak.fit`, by leave-one-out, and the band that of `ak.bands`. The variable
    `weight` weighs rows.

    ```python
    import pandas, seaborn.objects as so

    x = np.linspace(0.0, 3.0, 30)
    frame = pandas.DataFrame({"x": x, "y": np.sin(x) + 0.1 * np.cos(9 * x), "g": "a"})
    lines = so.Plot(frame, "x", "y", color="g").add(so.Line(), ak.plot.Smooth())
    lines.add(so.Band(), ak.plot.Smooth(band=True))
    ```

    **Arguments:**

    - `model`: default None: a local line with a Gaussian kernel.
    - `band`: whether it gives the limits of the band, for `so.Band()`. Default: the curve.
    - `level`: of the band. Default: 0.95.
    - `gridsize`: number of inputs, from the smallest to the largest of a group. Default: 200.

    **Raises:** `ValueError` with the name of the group, if it cannot be fitted, as it is drawn.
    """

    model: Any = None
    band: bool = False
    level: float = 0.95
    gridsize: int = 200

    def __post_init__(self):
        if self.model is not None:
            require_instance("model", self.model, Smoother, "ak.KernelRegression(kernel, order=1)")
        require_bool("band", self.band)
        require_level("level", self.level)
        as_integer("gridsize", self.gridsize, 2)

    def __call__(self, data: Any, groupby: Any, orient: str, scales: Any) -> Any:
        """Returns a frame with the fitted curve of each group of rows, and with `band` its limits.

        seaborn calls it. If `orient` is "y", the labels are in the column x and the inputs in y.
        """
        swap = {"x": "y", "y": "x", "ymin": "xmin", "ymax": "xmax"} if orient == "y" else {}

        def of_group(rows: Any) -> Any:
            named = {name: rows[name].iloc[0] for name in groupby.order if name in rows}
            level = self.level if self.band else None
            at = grid(rows["x"].to_numpy(dtype=float), self.gridsize)
            return type(rows)(fit_of_group(rows, at, self.model, level, named))

        rows = data.rename(columns=swap).dropna(subset=["x", "y"])
        return groupby.apply(rows, of_group).rename(columns=swap)
