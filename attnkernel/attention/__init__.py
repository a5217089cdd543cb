"""Attention: `attend`, the choice of its method, and several heads."""

from ._attend import (
    attend as attend,
    attention_weights as attention_weights,
    softmax_state as softmax_state,
    votes as votes,
    zero_nonfinite_queries,
)
from ._auto import (
    Auto as Auto,
    Selection as Selection,
    as_order,
    require_parts,
    select_method as select_method,
    task_of,
)
from ._jit import jit_if_pure, with_automatic_axes
from ._per_head import KernelPriorRule, PerHead as PerHead, batch_shape, first_head, map_batch
