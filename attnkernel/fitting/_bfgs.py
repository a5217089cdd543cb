r"""The search of a deterministic minimum: BFGS, of which every step is one evaluation.

A step evaluates the objective and its gradient at a trial point. Where that is low enough (Armijo)
the trial is taken, the inverse Hessian H learns from it, and the next trial is along $-H g$;
otherwise the next trial is nearer, at the minimum of the parabola through what is known. So a
search has one copy of the objective in its program, and none is evaluated that is not used.
(Nocedal and Wright, *Numerical Optimization*, 2006, chapters 3 and 6.)
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree

_FIRST = 0.1  # length of the first step
_LONGEST = 1.0
_ARMIJO = 1e-4
_PATIENCE = 3  # steps in a row that gained nothing this precision can see


class Bfgs(NamedTuple):
    """What a search knows beside the point it has reached, its loss and whether it has stopped."""

    gradient: Float[Array, " params"]
    inverse: Float[Array, "params params"]  # H
    knows: Bool[Array, ""]  # whether H has learnt of a curvature
    direction: Float[Array, " params"]
    length: Float[Array, ""]  # of the trial: z + length * direction
    taken: Int[Array, ""]  # points, the start included
    idle: Int[Array, ""]

    @classmethod
    def start(cls, z: PyTree) -> "Bfgs":
        flat, _ = ravel_pytree(z)
        zero, count = jnp.zeros_like(flat), jnp.zeros((), int)
        eye, false = jnp.eye(len(flat), dtype=flat.dtype), jnp.zeros((), bool)
        return cls(zero, eye, false, zero, zero.sum(), count, count)

    def again(self) -> "Bfgs":
        """A search from here of another objective, of nearly the same curvature."""
        zero, count = jnp.zeros_like(self.gradient), jnp.zeros_like(self.taken)
        return self._replace(
            gradient=zero,
            direction=zero,
            length=jnp.zeros_like(self.length),
            taken=count,
            idle=count,
        )

    def trial(self, z: PyTree) -> PyTree:
        flat, unravel = ravel_pytree(z)
        return unravel(flat + self.length * self.direction)

    def learn(
        self, z: PyTree, loss: Array, found: Array, slope: PyTree, tolerance: float
    ) -> tuple["Bfgs", PyTree, Array, Array, Array]:
        """The search after its trial was evaluated: state, z, loss, converged, diverged."""
        flat, unravel = ravel_pytree(z)
        gradient, _ = ravel_pytree(slope)
        gradient = gradient.astype(flat.dtype)
        eps = float(jnp.finfo(found.dtype).eps)  # the objective may be of another precision
        tolerance = max(tolerance, eps**0.6)
        found = found.astype(loss.dtype)
        finite = jnp.isfinite(found) & jnp.all(jnp.isfinite(gradient))
        first = self.taken == 0
        along = _dot(self.gradient, self.direction)  # negative
        rounding = 4.0 * eps * jnp.abs(loss)
        low = found <= loss + _ARMIJO * self.length * along + rounding
        # what rounding hides of the loss the slope still tells (Hager and Zhang, 2005)
        steepest, before = jnp.max(jnp.abs(gradient)), jnp.max(jnp.abs(self.gradient))
        low |= (found <= loss + 16.0 * rounding) & (steepest <= 0.5 * before)
        took = finite & (first | low)

        # taken: learn the curvature of the step, and set out anew
        step, change = self.length * self.direction, gradient - self.gradient
        bowl = _dot(step, change) > 0
        learnt = bowl & took & ~first
        updated = _updated(self.inverse, step, change, self.knows)
        inverse = jnp.where(learnt, updated, self.inverse)
        ahead = -_product(inverse, gradient)
        longest = jnp.max(jnp.abs(ahead))
        # at first a short step; where the slope fell, as on a hilltop, twice as far as before
        size = jnp.where(first, _FIRST, 2.0 * jnp.max(jnp.abs(step)))
        size = jnp.minimum(_LONGEST, jnp.where(learnt | (first & self.knows), longest, size))
        ahead = ahead * (size / jnp.where(longest > 0, longest, 1.0))

        # not taken: the minimum of the parabola through the loss, its slope, and the trial
        bend = found - loss - along * self.length
        best = -0.5 * along * self.length / jnp.where(bend > 0, bend, 1.0)
        nearer = self.length * jnp.where(finite & (bend > 0), jnp.clip(best, 0.1, 0.5), 0.1)

        flat_here = steepest <= tolerance * jnp.abs(found)
        gained = loss - found > eps * jnp.abs(found)
        idle = jnp.where(took, jnp.where(first | gained, 0, self.idle + 1), self.idle)
        shortest = jnp.max(jnp.abs(nearer * self.direction))
        # where it is flat, a trial that promised less than rounding hides is the last
        unseen = -along * self.length <= eps * jnp.abs(loss)
        unseen &= before <= eps**0.5 * jnp.abs(loss)
        stuck = ~took & ~first & ((shortest <= 4.0 * eps) | (finite & unseen))
        converged = (took & (flat_here | (idle >= _PATIENCE))) | stuck
        new = Bfgs(
            jnp.where(took, gradient, self.gradient),
            jnp.where(took, inverse, self.inverse),
            self.knows | learnt,
            jnp.where(took, ahead, self.direction),
            jnp.where(took, 1.0, nearer).astype(flat.dtype),
            self.taken + took,
            idle,
        )
        z = unravel(jnp.where(took, flat + step, flat))
        return new, z, jnp.where(took, found, loss), converged, first & ~finite


def _updated(
    inverse: Float[Array, "params params"],
    step: Float[Array, " params"],
    change: Float[Array, " params"],
    knows: Bool[Array, ""],
) -> Float[Array, "params params"]:
    r"""$H' = (I - \rho s y^\top) H (I - \rho y s^\top) + \rho s s^\top$, $\rho = 1/(s^\top y)$.

    The first time from $H = (s^\top y / y^\top y)\, I$. Only for $s^\top y > 0$.
    """
    eye = jnp.eye(len(step), dtype=step.dtype)
    rho = 1.0 / _dot(step, change)
    inverse = jnp.where(knows, inverse, eye / (rho * _dot(change, change)))
    left = eye - rho * step[:, None] * change[None, :]
    return _product(_product(left, inverse), left.T) + rho * step[:, None] * step[None, :]


def _product(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def _dot(a: Array, b: Array) -> Array:
    return jnp.sum(a * b)
