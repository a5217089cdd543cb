"""What the same letter means elsewhere: lengthscale and bandwidth conventions, by name."""

import math
import statistics
from typing import NamedTuple

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.validation import require_choice, require_positive


class _Convention(NamedTuple):
    """A number h that names a kernel by another rule than its lengthscale ℓ: $\\ell = (c h)^p$."""

    kernel: str
    factor: float
    power: float = 1.0


_CONVENTIONS = {
    "standard": _Convention("Gaussian", 1.0),
    "unhalved": _Convention("Gaussian", 1.0 / math.sqrt(2.0)),
    "sklearn_gamma": _Convention("Gaussian", 2.0, -0.5),
    "locfit_gauss": _Convention("Gaussian", 1.0 / 2.5),
    "ksmooth_normal": _Convention("Gaussian", 0.25 / statistics.NormalDist().inv_cdf(0.75)),
    "boxcar": _Convention("Boxcar", 1.0),
    "ksmooth_box": _Convention("Boxcar", 0.5),
    "epanechnikov": _Convention("Epanechnikov", 1.0),
    "np_epanechnikov": _Convention("Epanechnikov", math.sqrt(5.0)),
}
CONVENTIONS = tuple(_CONVENTIONS)


def convert_lengthscale(
    lengthscale: ArrayLike, *, source: str = "standard", target: str = "standard"
) -> Float[Array, "..."]:
    r"""The number that names the same kernel in another convention.

    $$ h_t = g_t^{-1}\big(g_s(h_s)\big), \qquad \ell = g(h) $$

    g says which lengthscale ℓ of this package a number h names:

    | name | of whom | kernel of the distance d | ℓ |
    |---|---|---|---|
    | `"standard"` | R `np`, statsmodels, kerneljax | `Gaussian`: $\exp(-d^2 / 2 h^2)$ | h |
    | `"unhalved"` | Czyż (2024) | `Gaussian`: $\exp(-(d / h)^2)$ | $h / \sqrt2$ |
    | `"sklearn_gamma"` | scikit-learn's `gamma` | `Gaussian`: $\exp(-h d^2)$ | $1 / \sqrt{2 h}$ |
    | `"locfit_gauss"` | R `locfit`, `"gauss"` | `Gaussian`: $\exp(-(2.5 d / h)^2 / 2)$ | h/2.5 |
    | `"ksmooth_normal"` | R `ksmooth`, `"normal"` | `Gaussian` with quartiles ±h/4 | 0.3706506 h |
    | `"boxcar"` | the half-width | `Boxcar`: $d < h$ | h |
    | `"ksmooth_box"` | R `ksmooth`, `"box"` | `Boxcar`: $d < h / 2$ | h / 2 |
    | `"epanechnikov"` | the half-width; most packages | `Epanechnikov`: $1 - (d / h)^2$ | h |
    | `"np_epanechnikov"` | R `np`, Stata | `Epanechnikov`: $1 - (d / h)^2 / 5$ | $\sqrt5\, h$ |

    The factor of `"ksmooth_normal"` is $1 / (4 \Phi^{-1}(3/4))$; beyond 4ℓ `ksmooth` gives no
    weight. That of `"np_epanechnikov"` makes h a standard deviation.

    **Arguments:** `lengthscale`: $h_s$, any shape, positive, in the units of x (of
    `"sklearn_gamma"`, in one over their square); `source`, `target`: names of the table.

    **Raises:** `ValueError` for a name that is not in the table, names of different kernels, or a
    number ≤ 0.

    ```python
    >>> gamma = ak.kernels.convert_lengthscale(0.5, target="sklearn_gamma")
    >>> round(float(gamma), 3)
    2.0

    ```
    """
    require_positive("lengthscale", lengthscale)
    require_choice("source", source, CONVENTIONS)
    require_choice("target", target, CONVENTIONS)
    one, other = _CONVENTIONS[source], _CONVENTIONS[target]
    if one.kernel != other.kernel:
        same = (name for name, rule in _CONVENTIONS.items() if rule.kernel == one.kernel)
        raise ValueError(
            f"{source!r} names the width of a kernel {one.kernel}, {target!r} that of "
            f"{other.kernel}: no lengthscale makes these two kernels the same. Of {one.kernel} "
            f"there are {', '.join(map(repr, same))}."
        )
    array = jnp.asarray(lengthscale) * 1.0
    require_positive("lengthscale", array)  # also once rounded
    if source == target:
        return array
    lengthscale = (one.factor * array) ** one.power
    return lengthscale ** (1.0 / other.power) / other.factor
