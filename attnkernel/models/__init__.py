"""Models: kernel regressions and attention as Equinox modules."""

from ._attention import MultiheadAttention as MultiheadAttention, SelfAttention as SelfAttention
from ._cache import KVCache as KVCache, RecurrentCache as RecurrentCache
from ._learned import LearnedKernelRegression as LearnedKernelRegression
from ._regression import (
    KernelRegression as KernelRegression,
    MultiheadKernelRegression as MultiheadKernelRegression,
)
from ._rotary import rotate as rotate
