"""Attention is kernel regression: one call, `attend`, and everything that is built on it."""

import importlib
from typing import TYPE_CHECKING

from . import data as data, kernels as kernels, methods as methods, priors as priors
from ._attend import attend as attend, attention_weights as attention_weights
from ._auto import Auto as Auto, Selection as Selection, select_method as select_method
from ._heads import PerHead as PerHead
from ._rules import Entmax as Entmax, Rule as Rule, Softmax as Softmax, Uniform as Uniform
from ._save import SavedFileError as SavedFileError, load as load, save as save
from .fit import (
    GCV as GCV,
    AICc as AICc,
    Bands as Bands,
    Checkpoints as Checkpoints,
    CheckpointWarning as CheckpointWarning,
    Fit as Fit,
    FitWarning as FitWarning,
    HoldOut as HoldOut,
    KFold as KFold,
    LeaveOneOut as LeaveOneOut,
    Objective as Objective,
    bands as bands,
    choose as choose,
    conformal as conformal,
    degrees_of_freedom as degrees_of_freedom,
    effective_count as effective_count,
    fit as fit,
    fit_many as fit_many,
    log_score as log_score,
    noise_variance as noise_variance,
    normal_reference as normal_reference,
    plug_in as plug_in,
    profile as profile,
    quantiles as quantiles,
    squared_error as squared_error,
    summarise as summarise,
    wild_bootstrap as wild_bootstrap,
)
from .kernels import (
    Additive as Additive,
    AitchisonAitken as AitchisonAitken,
    Bilinear as Bilinear,
    Biweight as Biweight,
    Boxcar as Boxcar,
    Cauchy as Cauchy,
    Cosine as Cosine,
    CosineSimilarity as CosineSimilarity,
    DotProduct as DotProduct,
    EluFeatures as EluFeatures,
    Epanechnikov as Epanechnikov,
    Gaussian as Gaussian,
    Kernel as Kernel,
    Laplace as Laplace,
    LiRacine as LiRacine,
    LiRacineOrdered as LiRacineOrdered,
    Matern32 as Matern32,
    Matern52 as Matern52,
    NearestNeighbours as NearestNeighbours,
    On as On,
    Periodic as Periodic,
    Polynomial as Polynomial,
    Projected as Projected,
    RandomFeatures as RandomFeatures,
    RationalQuadratic as RationalQuadratic,
    SoftCapped as SoftCapped,
    Taylor as Taylor,
    Triangular as Triangular,
    Tricube as Tricube,
    Triweight as Triweight,
    WangVanRyzin as WangVanRyzin,
)
from .methods import (
    Blockwise as Blockwise,
    Dense as Dense,
    Fourier as Fourier,
    Fused as Fused,
    Linear as Linear,
    Method as Method,
    Sharded as Sharded,
    Sorted as Sorted,
)
from .models import (
    ExtrapolationWarning as ExtrapolationWarning,
    KernelRegression as KernelRegression,
    KVCache as KVCache,
    LearnedKernelRegression as LearnedKernelRegression,
    MeanVarianceRegression as MeanVarianceRegression,
    MultiheadAttention as MultiheadAttention,
    MultiheadKernelRegression as MultiheadKernelRegression,
    RecurrentCache as RecurrentCache,
    SelfAttention as SelfAttention,
    density as density,
    rotate as rotate,
)
from .priors import (
    Alibi as Alibi,
    Causal as Causal,
    Mask as Mask,
    Prior as Prior,
    RelativeBias as RelativeBias,
    Window as Window,
)

if TYPE_CHECKING:
    from . import plot as plot

__version__ = "0.1.0"


def __getattr__(name: str):
    """`attnkernel.plot` on first use: importing the package does not import matplotlib."""
    if name == "plot":
        return importlib.import_module(".plot", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
