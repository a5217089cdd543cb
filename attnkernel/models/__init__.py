"""Models: kernel regressions and attention as Equinox modules."""

from ._cache import KVCache as KVCache
from ._density import density as density
from ._learned import LearnedKernelRegression as LearnedKernelRegression
from ._local import ExtrapolationWarning as ExtrapolationWarning
from ._mean_variance import MeanVarianceRegression as MeanVarianceRegression
from ._multihead import MultiheadAttention as MultiheadAttention
from ._recurrent import RecurrentCache as RecurrentCache
from ._regression import (
    KernelRegression as KernelRegression,
    MultiheadKernelRegression as MultiheadKernelRegression,
)
from ._rotary import rotate as rotate
from ._self_attention import SelfAttention as SelfAttention
