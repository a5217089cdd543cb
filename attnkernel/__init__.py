"""Attention is kernel regression: one call, `attend`, and everything that is built on it.

| to | names |
|---|---|
| sum | `attend`, `attention_weights`, `votes`; layers: `MultiheadAttention`, `SelfAttention` |
| choose weights | kernels (`Gaussian`), priors (`Causal`), rules (`Softmax`), `methods` |
| model | `KernelRegression`, `LocalLikelihood`, `AdditiveRegression`, ... `density` |
| fit | `fit`, `fit_many`, `choose`; objectives: `LeaveOneOut`, `HoldOut`, `AICc`, ... |
| say how certain | `bands`, `conformal`, `quantiles`, `noise_variance`, `summarise` |
| draw, use elsewhere | `plot`, `sklearn`, `save`, `load` |

More kernels are in `ak.kernels`, more priors in `ak.priors`, and so on: `help(ak.kernels)`.
"""

import importlib
import typing

from . import (
    attention as attention,
    data as data,
    econometrics as econometrics,
    families as families,
    fitting as fitting,
    inference as inference,
    kernels as kernels,
    local as local,
    losses as losses,
    methods as methods,
    models as models,
    nn as nn,
    objectives as objectives,
    priors as priors,
    recurrent as recurrent,
    rules as rules,
)
from ._core import hints as _hints
from ._core.compilation import cache_programs as cache_programs
from ._core.parameters import fixed as fixed
from ._core.saving import SavedFileError as SavedFileError, load as load, save as save
from .attention import (
    PerHead as PerHead,
    attend as attend,
    attention_weights as attention_weights,
    votes as votes,
)
from .families import Binomial as Binomial, Gamma as Gamma, Poisson as Poisson
from .fitting import (
    Fit as Fit,
    FitWarning as FitWarning,
    choose as choose,
    fit as fit,
    fit_many as fit_many,
)
from .inference import (
    bands as bands,
    conformal as conformal,
    degrees_of_freedom as degrees_of_freedom,
    noise_variance as noise_variance,
    quantiles as quantiles,
    summarise as summarise,
)
from .kernels import (
    DotProduct as DotProduct,
    Epanechnikov as Epanechnikov,
    Gaussian as Gaussian,
    Laplace as Laplace,
    Matern52 as Matern52,
    NearestNeighbours as NearestNeighbours,
    OnColumns as OnColumns,
    Periodic as Periodic,
)
from .losses import Huber as Huber, squared_error as squared_error
from .models import (
    AdditiveRegression as AdditiveRegression,
    ConditionalDensity as ConditionalDensity,
    KernelDensity as KernelDensity,
    KernelRegression as KernelRegression,
    LearnedKernelRegression as LearnedKernelRegression,
    LinearSmoother as LinearSmoother,
    LocalLikelihood as LocalLikelihood,
    LocalQuantile as LocalQuantile,
    MeanVarianceRegression as MeanVarianceRegression,
    MultiheadKernelRegression as MultiheadKernelRegression,
    RobustRegression as RobustRegression,
    density as density,
)
from .nn import (
    MultiheadAttention as MultiheadAttention,
    Rotary as Rotary,
    SelfAttention as SelfAttention,
)
from .objectives import (
    GCV as GCV,
    AICc as AICc,
    HoldOut as HoldOut,
    KFold as KFold,
    LeaveOneOut as LeaveOneOut,
    profile as profile,
)
from .priors import Alibi as Alibi, Causal as Causal, Mask as Mask, Window as Window
from .rules import Entmax as Entmax, Softmax as Softmax

if typing.TYPE_CHECKING:
    from . import plot as plot, sklearn as sklearn

__version__ = "0.1.0"


def __getattr__(name: str):
    """`attnkernel.plot` and `.sklearn` on first use: what they need is not imported before."""
    if name in ("plot", "sklearn"):
        return importlib.import_module(f".{name}", __name__)
    hint = _hints.name_hint(name, {of: globals().get(of) for of in __dir__()})
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    """The public names, those on first use too."""
    names = [name for name in globals() if not name.startswith("_")]
    return sorted({*names, "plot", "sklearn"} - {"importlib", "typing"})
