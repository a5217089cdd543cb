"""Attention layers for Equinox models, what decodes them row by row, and rotary positions."""

from ._bias_reduced import BiasReducedAttention as BiasReducedAttention
from ._cache import Cache as Cache, KVCache as KVCache, RecurrentCache as RecurrentCache
from ._cached_layer import CachedLayer as CachedLayer
from ._from_torch import from_torch as from_torch
from ._inputs import multiply_priors
from ._latent_attention import LatentAttention as LatentAttention
from ._multihead import MultiheadAttention as MultiheadAttention
from ._persistent_memory import PersistentMemory as PersistentMemory
from ._recurrent_attention import RecurrentAttention as RecurrentAttention
from ._rotary import (
    Rotary as Rotary,
    axial_frequencies as axial_frequencies,
    llama3_frequencies as llama3_frequencies,
    ntk_frequencies as ntk_frequencies,
    rotary_frequencies as rotary_frequencies,
    yarn_frequencies as yarn_frequencies,
)
from ._self_attention import SelfAttention as SelfAttention
from ._short_convolution import ShortConvolution as ShortConvolution
