"""Attention modules for Equinox models: heads, caches of a decoder, rotary positions."""

from ._cache import KVCache as KVCache
from ._multihead import MultiheadAttention as MultiheadAttention
from ._recurrent import RecurrentCache as RecurrentCache
from ._rotary import Rotary as Rotary
from ._rotary_frequencies import (
    axial_frequencies as axial_frequencies,
    llama3_frequencies as llama3_frequencies,
    ntk_frequencies as ntk_frequencies,
    rotary_frequencies as rotary_frequencies,
    yarn_frequencies as yarn_frequencies,
)
from ._self_attention import SelfAttention as SelfAttention
