"""Attention: `attend`, the choice of a method, heads, and local polynomials as attention."""

from ._attend import attend as attend, attention_weights as attention_weights
from ._auto import Auto as Auto, Selection as Selection, select_method as select_method
from ._local_fit import ExtrapolationWarning as ExtrapolationWarning, LocalFit as LocalFit
from ._local_likelihood import LikelihoodFit as LikelihoodFit
from ._local_quantile import QuantileFit as QuantileFit
from ._per_head import PerHead as PerHead
from ._softmax_state import softmax_state as softmax_state
