r"""BFGS with one evaluation of the objective and its gradient at each step.

A step evaluates a trial point. If the loss is low enough there (Armijo), the trial is accepted, the
inverse Hessian H is updated, and the next trial is along $-H g$; otherwise the next trial is
nearer, at the minimum of the parabola through the known values. A compiled search thus holds one
copy of the objective. (Nocedal and Wright, *Numerical Optimization*, 2006, chapters 3 and 6.)

`optimistix.BFGS` 0.1.0 (rtol = atol = 1e-6) was compared on 60 rows, 20 data sets of 1, 2 and 5
lengthscales each, ten starts. The best ends are equal within noise. With 1 lengthscale it takes 20
evaluations instead of 9 and 2.2 times the time, with 5 0.8 times; compilation takes 0.1 to 0.4 s
longer. Armijo's rule alone does not see a gain below rounding: of 400 searches with noise of 23
roundings 48 end more than 1e-9 off (here none) in 12 evaluations on average (here 4), and 2 to 16 %
of all searches use up their steps. A start without a finite loss takes all of them (here one).

A mean of absolute errors has a kink where an error changes its sign, and its minimum is at one.
A search of one parameter therefore keeps a bracket, and halves it once it is short.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree

from .._core.arrays import AnyArray, namespace_of, precise_matmul
from ._problem import flat_rows

MAX_HALVED_BRACKET = 0.1  # in units of z: longer than the last steps towards a smooth minimum


class Bfgs(NamedTuple):
    """The state of a search: the best point, its loss, and the next trial."""

    z: PyTree
    loss: Float[Array, ""]  # infinite before the first evaluation
    gradient: Float[Array, " params"]
    inverse: Float[Array, "params params"]  # H
    has_curvature: Bool[Array, ""]  # whether H was ever updated
    direction: Float[Array, " params"]
    length: Float[Array, ""]  # the trial is z + length * direction
    accepted: Int[Array, ""]  # trials, the start included
    flat_steps: Int[Array, ""]  # accepted in a row, with a gain below rounding
    bracket: Float[Array, ""]  # of one parameter: the distance to the other end; else infinite
    steps: Int[Array, ""]  # evaluations before the search stopped
    max_steps: Int[Array, ""]
    converged: Bool[Array, ""]
    diverged: Bool[Array, ""]

    @classmethod
    def start(cls, z: PyTree, axes: int = 1) -> "Bfgs":
        """Returns the initial states of searches, whose first trials are the entries of z.

        `axes`: the number of leading axes: 1, those of starts; 2, those of fits and of starts. The
        result is NumPy if z is; nothing is then compiled.
        """
        xp, index = namespace_of(jax.tree.leaves(z)[0]), jnp.result_type(int)
        flat = flat_rows(z, axes, xp)
        *number, params = flat.shape
        zeros, count, false = xp.zeros_like(flat), xp.zeros(number, index), xp.zeros(number, bool)
        return cls(
            z=z,
            loss=xp.full(number, xp.inf, jnp.result_type(float)),
            gradient=zeros,
            inverse=xp.tile(xp.eye(params, dtype=flat.dtype), (*number, 1, 1)),
            has_curvature=false,
            direction=zeros,
            length=xp.zeros(number, flat.dtype),
            accepted=count,
            flat_steps=count,
            bracket=xp.full(number, xp.inf, flat.dtype),
            steps=count,
            max_steps=xp.full(number, np.iinfo(index).max, index),
            converged=false,
            diverged=false,
        )

    def is_stopped(self) -> Bool[AnyArray, "*starts"]:
        """Whether each search has converged, diverged, or taken all of its steps."""
        return self.converged | self.diverged | (self.steps >= self.max_steps)

    def trial(self) -> PyTree:
        """Returns the point to evaluate next."""
        flat, unravel = ravel_pytree(self.z)
        return unravel(flat + self.length * self.direction)

    def update(self, found: Array, slope: PyTree, tolerance: float) -> "Bfgs":
        """Returns the state after the trial was evaluated.

        `found`, `slope`: the loss and its gradient at the trial point. `tolerance`: raised to
        ε^0.6 if it is less. If the loss or the gradient of the first trial is not finite, the
        search has diverged; a later such trial is rejected.

        The search has converged if $\\max|g| \\le$ `tolerance` $\\cdot |L|$, or if three accepted
        steps in a row gained less than rounding, or if the next trial were shorter than rounding or
        than 10⁻⁶ of a full step, or near a stationary point if a rejected trial could not gain more
        than rounding. A search of one parameter has also converged if its bracket is
        shorter than √ε: a smooth loss then changes by less than rounding.
        """
        flat, unravel = ravel_pytree(self.z)
        gradient, _ = ravel_pytree(slope)
        gradient = gradient.astype(flat.dtype)
        eps = float(jnp.finfo(found.dtype).eps)  # the objective may have another precision
        tolerance = max(tolerance, eps**0.6)
        found = found.astype(self.loss.dtype)
        finite = jnp.isfinite(found) & jnp.all(jnp.isfinite(gradient))
        first = self.accepted == 0
        along = _inner_product(self.gradient, self.direction)  # negative
        rounding = 4.0 * eps * jnp.abs(self.loss)
        low = found <= self.loss + 1e-4 * self.length * along + rounding  # Armijo
        # below rounding of the loss the gradient still decides (Hager and Zhang, 2005)
        steepest, before = jnp.max(jnp.abs(gradient)), jnp.max(jnp.abs(self.gradient))
        low |= (found <= self.loss + 16.0 * rounding) & (steepest <= 0.5 * before)
        accepted = finite & (first | low)

        # accepted: update H, and choose the next direction
        step, change = self.length * self.direction, gradient - self.gradient
        is_convex = _inner_product(step, change) > 0
        updated = is_convex & accepted & ~first
        inverse = jnp.where(
            updated, _bfgs_update(self.inverse, step, change, self.has_curvature), self.inverse
        )
        ahead = -precise_matmul(inverse, gradient)
        longest = jnp.max(jnp.abs(ahead))
        # the first step is short; without positive curvature a step is twice as long as the last
        first_step_length = 0.1
        size = jnp.where(first, first_step_length, 2.0 * jnp.max(jnp.abs(step)))
        has_scale = updated | (first & self.has_curvature)
        size = jnp.minimum(1.0, jnp.where(has_scale, longest, size))
        bracket = self.bracket
        if len(flat) == 1:
            walked = jnp.max(jnp.abs(step))
            has_crossed = _inner_product(gradient, self.gradient) < 0
            onward = jnp.where(walked < bracket, bracket - walked, jnp.inf)
            onward = jnp.where(has_crossed, walked, onward)
            bracket = jnp.where(accepted, onward, jnp.minimum(bracket, walked))
            bracket = jnp.where(first, jnp.inf, bracket)
            is_short = bracket <= MAX_HALVED_BRACKET
            size = jnp.where(is_short, jnp.minimum(size, 0.5 * bracket), size)
        ahead = ahead * (size / jnp.where(longest > 0, longest, 1.0))

        # rejected: the minimum of the parabola through the loss, its slope, and the trial
        bend = found - self.loss - along * self.length
        best = -0.5 * along * self.length / jnp.where(bend > 0, bend, 1.0)
        nearer = self.length * jnp.where(finite & (bend > 0), jnp.clip(best, 0.1, 0.5), 0.1)

        is_flat = steepest <= tolerance * jnp.abs(found)
        gained = self.loss - found > eps * jnp.abs(found)
        flat_steps = jnp.where(
            accepted, jnp.where(first | gained, 0, self.flat_steps + 1), self.flat_steps
        )
        # a loss may be noisier than rounding, from rows that others barely determine: 6433 rows in
        # two columns, float64: 54 evaluations of 162 less for 10⁻⁶ of a step
        shortest = jnp.maximum(4.0 * eps / jnp.max(jnp.abs(self.direction)), 1e-6)
        # near a stationary point, a trial whose expected gain is below rounding is the last
        below_rounding = -along * self.length <= eps * jnp.abs(self.loss)
        below_rounding &= before <= eps**0.5 * jnp.abs(self.loss)
        stalled = ~accepted & ~first & ((nearer <= shortest) | (finite & below_rounding))
        max_flat_steps = 3  # accepted steps in a row whose gain is below rounding
        converged = (accepted & (is_flat | (flat_steps >= max_flat_steps))) | stalled
        converged |= bracket <= eps**0.5
        diverged = first & ~finite
        return self._replace(
            z=unravel(jnp.where(accepted, flat + step, flat)),
            loss=jnp.where(accepted, found, self.loss),
            gradient=jnp.where(accepted, gradient, self.gradient),
            inverse=jnp.where(accepted, inverse, self.inverse),
            has_curvature=self.has_curvature | updated,
            direction=jnp.where(accepted, ahead, self.direction),
            length=jnp.where(accepted, 1.0, nearer).astype(flat.dtype),
            accepted=self.accepted + accepted,
            flat_steps=flat_steps,
            bracket=bracket,
            steps=self.steps + ~(converged | diverged),
            converged=converged,
            diverged=diverged,
        )


def _bfgs_update(
    inverse: Float[Array, "params params"],
    step: Float[Array, " params"],
    change: Float[Array, " params"],
    has_curvature: Bool[Array, ""],
) -> Float[Array, "params params"]:
    r"""Returns the BFGS update H' of an inverse Hessian.

    $$ H' = (I - \rho s y^\top) H (I - \rho y s^\top) + \rho s s^\top, \quad \rho = 1/(s^\top y) $$

    `inverse`: H; `step`: s, the change of the point; `change`: y, that of the gradient;
    `has_curvature`: whether H was updated before.

    The first update is from $H = (s^\top y / y^\top y)\, I$. Requires $s^\top y > 0$.
    """
    eye = jnp.eye(len(step), dtype=step.dtype)
    rho = 1.0 / _inner_product(step, change)
    inverse = jnp.where(has_curvature, inverse, eye / (rho * _inner_product(change, change)))
    left = eye - rho * step[:, None] * change[None, :]
    return (
        precise_matmul(precise_matmul(left, inverse), left.T) + rho * step[:, None] * step[None, :]
    )


def _inner_product(a: Array, b: Array) -> Array:
    """Returns the inner product of two vectors."""
    return jnp.sum(a * b)
