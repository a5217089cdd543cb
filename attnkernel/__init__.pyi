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
    plot as plot,
    priors as priors,
    recurrent as recurrent,
    rules as rules,
    sklearn as sklearn,
)
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

__version__: str
