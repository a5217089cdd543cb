"""The fit of each group and its band, as plotnine asks for them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..fitting import fit
from ..inference import bands
from ..kernels import Gaussian
from ..models import KernelRegression


def fit_of_group(
    group: Any, at: Any, model: Any, level: float | None, named: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Returns the fitted curve as `x` and `y`, at the inputs `at`, and its band as `ymin`, `ymax`.

    **Arguments:** `group`: a frame with x and y, and the weight of each row, if it has any.
    `level`: None: no band. `named`: what tells this group from others, for errors.

    **Raises:** `ValueError` with the name of the group, if it cannot be fitted.
    """
    x, y = (group[name].to_numpy(dtype=float) for name in ("x", "y"))
    weights = group["weight"].to_numpy(dtype=float) if "weight" in group else None
    try:
        if model is None:
            model = KernelRegression(Gaussian(float(np.std(x)) or 1.0), order=1)
        found = fit(model, x, y, weights=weights)
        curve = {"x": np.asarray(at), "y": np.asarray(found(at))}
        if level is not None:
            band = bands(found, at, level=level)
            curve |= {"ymin": np.asarray(band.lower), "ymax": np.asarray(band.upper)}
    except ValueError as error:
        words = ", ".join(f"{name} {value!r}" for name, value in named.items())
        raise ValueError(f"The group {words or 'of all rows'} has no fit. {error}") from None
    return curve


def smooth(data: Any, xseq: Any, params: Mapping[str, Any]) -> Any:
    r"""The method of `plotnine.geom_smooth`: one fit for each group, with its band.

    $$ \hat f(x), \qquad \hat f_{bc}(x) \pm t\, s(x) $$

    The curve is that of `ak.fit`, by leave-one-out; the band, at `level=` of `geom_smooth` and
    without it for `se=False`, that of `ak.bands`. The aesthetic `weight` weighs rows.

    ```python
    import pandas
    from plotnine import aes, geom_smooth, ggplot

    x = np.linspace(0.0, 3.0, 30)
    frame = pandas.DataFrame({"x": x, "y": np.sin(x) + 0.1 * np.cos(9 * x), "g": "a"})
    ggplot(frame, aes("x", "y", color="g")) + geom_smooth(method=ak.plot.smooth)
    ```

    **Arguments:** as plotnine gives them: rows of a group, inputs, and the parameters of
    `geom_smooth`; `method_args={"model": ...}` is another model than a local line with a Gaussian
    kernel.

    **Raises:** `ValueError` with the name of the group, if it cannot be fitted.
    """
    level = params["level"] if params["se"] else None
    constant = [name for name in data if name not in ("x", "y") and data[name].nunique() == 1]
    named = {name: data[name].iloc[0] for name in constant if name not in ("PANEL", "group")}
    model = params["method_args"].get("model")
    curve = fit_of_group(data, np.asarray(xseq, float), model, level, named)
    return type(data)(curve)
