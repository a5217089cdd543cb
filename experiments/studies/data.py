"""The data, and the true mean and standard deviation where they are known."""

from typing import Literal

import numpy as np
from jaxtyping import PRNGKeyArray

import attnkernel as ak

from ..config import Data
from ..reports import subplots
from ..runs import NO_MONITOR, Monitor, Run
from .study import Keys, Study, describe, require_one_input


class ShowData(Study):
    """Points, and for simulated data f(x) and the band f(x) ± 2 s(x)."""

    study: Literal["data"]
    data: Data

    def check(self) -> None:
        require_one_input(self)

    def compute(self, key: PRNGKeyArray, monitor: Monitor = NO_MONITOR) -> ak.data.Dataset:
        return self.data.load(Keys(key).next())

    def report(self, results: ak.data.Dataset, run: Run) -> None:
        figure, ax = subplots(figsize=(6.0, 3.6))
        ak.plot.data(results, ax=ax)
        figure.legend(loc="outside lower center", ncols=3)
        arrays = {"x": np.asarray(results.x)[:, 0], "y": np.asarray(results.y)}
        title = f"{self.name}: {len(results.y)} observations"
        if results.mean is not None and results.sd is not None:
            arrays |= {"mean": np.asarray(results.mean), "sd": np.asarray(results.sd)}
            inside = np.mean(np.abs(arrays["y"] - arrays["mean"]) <= 2 * arrays["sd"])
            title += f", {inside:.0%} within two standard deviations"
        ax.set_title(title)
        run.figure("data", figure, **arrays)
        run.summary({"data": describe(results), **arrays})
