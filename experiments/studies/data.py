"""The data, and where it is known the truth behind them."""

from typing import Literal

from matplotlib.figure import Figure

import attnkernel as ak

from ..parts import Data, FieldError, Name, Study, describe, load, to_list
from ..results import Run


class ShowData(Study):
    """Points, and for simulated data f(x) and the band f(x) ± 2 s(x)."""

    study: Literal["data"]
    name: Name = "data"
    data: Data

    def check(self) -> None:
        if load(self.data, self.keys().next()).x.shape[1] != 1:
            raise FieldError(("data",), "this study draws one input; name one column in data.x")

    def run(self, run: Run) -> None:
        data = load(self.data, self.keys().next())
        figure = Figure(figsize=(6.0, 3.6))
        ax = ak.plot.data(data, ax=figure.subplots())
        figure.legend(loc="outside lower center", ncols=3)
        arrays = {"x": data.x[:, 0], "y": data.y}
        if data.mean is not None and data.sd is not None:
            arrays |= {"mean": data.mean, "sd": data.sd}
        ax.set_title(f"{self.name}: {len(data.y)} observations")
        run.figure("data", figure, **arrays)
        run.summary({"data": describe(data), **{name: to_list(v) for name, v in arrays.items()}})
