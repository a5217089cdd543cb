"""Valid calls of densities."""

from typing import Any

import jax.numpy as jnp
import numpy as np

import attnkernel as ak

from .arguments import KERNEL, PARTS, Arguments, later, of_class
from .values import CONDITIONAL, DENSITY, POINTS, N, X, Y, now

DENSITIES: dict[str, tuple[Any, Arguments]] = {
    "density": (
        ak.density,
        {
            "x_new": ("points", X),
            "x": ("points", X),
            "kernel": KERNEL,
            "weights": ("weights?", np.ones(N)),
            "log": ("flag", False),
            "method": PARTS["method"],
        },
    ),
    **of_class("KernelDensity", kernel=KERNEL, support=("object?", None), method=PARTS["method"]),
    "KernelDensity.__call__": (
        later(DENSITY),
        {"x_new": ("points", X), "x": ("points", X), "weights": ("weights?", np.ones(N))},
    ),
    **of_class("ConditionalDensity", kernel=KERNEL, label_kernel=KERNEL, method=PARTS["method"]),
    "ConditionalDensity.__call__": (
        later(CONDITIONAL),
        {"x_new": ("points", POINTS), "x": ("points", POINTS), "prior": ("prior?", None)},
    ),
    "ConditionalDensity.mode": (
        lambda **given: now(CONDITIONAL).mode(**given),
        {"x_new": ("points", X), "x": ("points", POINTS), "weights": ("weights?", np.ones(N))},
    ),
    "objectives.UnbiasedCV": (
        lambda **given: ak.objectives.UnbiasedCV(**given)(now(DENSITY), jnp.asarray(X)[:, None], Y),
        {"weights": ("weights?", np.ones(N))},
    ),
    "normal_reference": (ak.normal_reference, {"x": ("points", X), "robust": ("flag", True)}),
    "inference.sheather_jones": (
        ak.inference.sheather_jones,
        {"x": ("points", X), "kind": ("choice", "ste")},
    ),
    "plug_in": (ak.plug_in, {"x": ("paired", X), "y": ("paired", Y)}),
}
