"""Options of XLA's compiler for CPU, and the figures that chose them."""

from typing import Any

import jax

from .host_arrays import is_on_one_device

# Gradients of leave-one-out run in 0.55 (205 rows), 0.9 (1000) and 1.0 (local linear) of the time
# that they take at XLA's default level, 3, and compile in 0.9 of it.
GRADIENT_OPTIONS = {"xla_backend_optimization_level": 1}
# Without XLA's fusion emitters, programs compile in half the time, and those of up to 2^20 pairs
# that are not differentiated run in 0.6 to 1.0 of it. Gradients run 1.2 to 3 times as long,
# blockwise sums 7 times. From version 0.12 JAX has no such option.
FORWARD_OPTIONS = GRADIENT_OPTIONS | (
    {"xla_cpu_use_fusion_emitters": False} if jax.__version_info__ < (0, 12) else {}
)


def can_use_options(*trees: Any) -> bool:
    """Whether a call with these arrays may set them: on a CPU, outside transformations, and where
    the user has not chosen to compile without optimisations."""
    is_optimised = not jax.config.read("jax_disable_most_optimizations")
    return is_optimised and jax.default_backend() == "cpu" and is_on_one_device(*trees)
