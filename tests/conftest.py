"""Strict everywhere: shapes and types are checked at run time, rank promotion raises."""

import jax
from jaxtyping import install_import_hook

# Must come before anything imports attnkernel; warnings are errors by pyproject.toml.
install_import_hook("attnkernel", "beartype.beartype")
jax.config.update("jax_numpy_rank_promotion", "raise")
