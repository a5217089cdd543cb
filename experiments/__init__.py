"""Experiments: from a YAML config to a run directory with its figures and numbers."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .config.kernels import register as register

PACKAGE = __name__  # in a wheel `attnkernel.experiments`
PROGRAM = "python -m experiments" if PACKAGE == "experiments" else "attnkernel"  # a user types it


def __getattr__(name: str):
    """`register` on first use: `python -m experiments --help` imports no JAX."""
    if name == "register":
        from .config.kernels import register  # noqa: PLC0415

        return register
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
