"""Valid calls of densities."""

from typing import Any

import jax.numpy as jnp

import attnkernel as ak
from attnkernel.inference import normal_reference, plug_in

from .arguments import KERNEL, Arguments, later, of_class, usual
from .values import CONDITIONAL, DENSITY, POINTS, X, Y, now

DENSITIES: dict[str, tuple[Any, Arguments]] = {
    "density": (
        ak.density,
        usual("x_new kernel weights method", x=("points", X), log=("flag", False)),
    ),
    **of_class("KernelDensity", "kernel method", support=("object?", None)),
    "KernelDensity.__call__": (later(DENSITY), usual("x_new weights", x=("points", X))),
    **of_class("ConditionalDensity", "kernel method", label_kernel=KERNEL),
    "ConditionalDensity.__call__": (
        later(CONDITIONAL),
        usual("prior", x_new=("points", POINTS), x=("points", POINTS)),
    ),
    "ConditionalDensity.mode": (
        lambda **given: now(CONDITIONAL).mode(**given),
        usual("x_new weights", x=("points", POINTS)),
    ),
    "objectives.UnbiasedCV": (
        lambda **given: ak.objectives.UnbiasedCV(**given)(now(DENSITY), jnp.asarray(X)[:, None], Y),
        usual("weights"),
    ),
    "normal_reference": (normal_reference, {"x": ("points", X), "robust": ("flag", True)}),
    "inference.sheather_jones": (
        ak.inference.sheather_jones,
        {"x": ("points", X), "kind": ("choice", "ste")},
    ),
    "plug_in": (plug_in, usual("x y")),
}
