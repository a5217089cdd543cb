"""Attention modules for Equinox models: heads, caches of a decoder, rotary positions."""

from ._cache import KVCache as KVCache
from ._multihead import MultiheadAttention as MultiheadAttention
from ._recurrent import RecurrentCache as RecurrentCache
from ._rotary import rotate as rotate
from ._self_attention import SelfAttention as SelfAttention
