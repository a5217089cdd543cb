"""Options of XLA's compiler for small programs on CPU, and the figures that chose them."""

from typing import Any

import jax

from .host_arrays import is_on_one_device

# CPU seconds of first calls of 200 rows, without → with: `ak.fit` of order 0 1.55 → 0.92, of order
# 1 2.5 → 1.4, `ak.bands` 3.3 → 1.75 and 4.0 → 2.0; later calls are as fast. Blockwise sums run 7
# times as long without fusion emitters, `ak.attend` of 1000 rows 1.8 times: for up to 2^18 pairs
# only. JAX from 0.12 has no such option.
SMALL_PROGRAM_OPTIONS = {"xla_backend_optimization_level": 1} | (
    {"xla_cpu_use_fusion_emitters": False} if jax.__version_info__ < (0, 12) else {}
)


def can_use_options(*trees: Any) -> bool:
    """Whether a call with these arrays may set them: on a CPU, outside transformations, and where
    the user has not chosen to compile without optimisations."""
    is_optimised = not jax.config.read("jax_disable_most_optimizations")
    return is_optimised and jax.default_backend() == "cpu" and is_on_one_device(*trees)
