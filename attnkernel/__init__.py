"""Attention is kernel regression: one call, `attend`, and everything that is built on it."""

import importlib
from typing import TYPE_CHECKING

from . import (
    data as data,
    families as families,
    fitting as fitting,
    inference as inference,
    kernels as kernels,
    losses as losses,
    methods as methods,
    models as models,
    nn as nn,
    objectives as objectives,
    priors as priors,
    recurrent as recurrent,
    rules as rules,
)
from ._core.parameter_arguments import fixed as fixed
from ._core.program_cache import cache_programs as cache_programs
from ._core.saving import SavedFileError as SavedFileError, load as load, save as save
from .attention import (
    Auto as Auto,
    ExtrapolationWarning as ExtrapolationWarning,
    PerHead as PerHead,
    Selection as Selection,
    attend as attend,
    attention_weights as attention_weights,
    select_method as select_method,
    softmax_state as softmax_state,
)
from .families import Binomial as Binomial, Gamma as Gamma, Poisson as Poisson
from .fitting import (
    Checkpoints as Checkpoints,
    CheckpointWarning as CheckpointWarning,
    Fit as Fit,
    FitWarning as FitWarning,
    choose as choose,
    fit as fit,
    fit_many as fit_many,
)
from .inference import (
    Bands as Bands,
    bands as bands,
    conformal as conformal,
    degrees_of_freedom as degrees_of_freedom,
    effective_count as effective_count,
    noise_variance as noise_variance,
    normal_reference as normal_reference,
    plug_in as plug_in,
    quantiles as quantiles,
    summarise as summarise,
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
from .losses import (
    Bisquare as Bisquare,
    CheckLoss as CheckLoss,
    Huber as Huber,
    absolute_error as absolute_error,
    squared_error as squared_error,
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
    AdditiveRegression as AdditiveRegression,
    BiasReduced as BiasReduced,
    ConditionalDensity as ConditionalDensity,
    KernelDensity as KernelDensity,
    KernelRegression as KernelRegression,
    LearnedKernelRegression as LearnedKernelRegression,
    LinearSmoother as LinearSmoother,
    LocalLikelihood as LocalLikelihood,
    LocalQuantile as LocalQuantile,
    MeanVarianceRegression as MeanVarianceRegression,
    MultiheadKernelRegression as MultiheadKernelRegression,
    PartiallyLinear as PartiallyLinear,
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
    BlockedKFold as BlockedKFold,
    GroupKFold as GroupKFold,
    HoldOut as HoldOut,
    KFold as KFold,
    LeaveOneOut as LeaveOneOut,
    Objective as Objective,
    log_score as log_score,
    profile as profile,
)
from .priors import (
    Alibi as Alibi,
    Causal as Causal,
    Mask as Mask,
    Prior as Prior,
    RelativeBias as RelativeBias,
    Window as Window,
)
from .rules import Entmax as Entmax, Rule as Rule, Softmax as Softmax, Uniform as Uniform

if TYPE_CHECKING:
    from . import plot as plot, sklearn as sklearn

__version__ = "0.1.0"


def __getattr__(name: str):
    """`attnkernel.plot` and `.sklearn` on first use: what they need is not imported before."""
    if name in ("plot", "sklearn"):
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
