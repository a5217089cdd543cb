"""`Prior.as_key_mask`: what a factorised method may ask of a prior, also of a user's own."""

import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Bool
from laws import assert_equals_dense
from marks import needs_finufft

import attnkernel as ak
from attnkernel import priors
from attnkernel.kernels import EluFeatures
from attnkernel.methods import Fourier, Linear, Sharded, Sorted

N = 23
EVEN = np.arange(N) % 2 == 0


class FromFirst(priors.Prior):
    """A prior of a user's own: keys that are flagged, the row of the query aside if asked."""

    flags: Bool[Array, " keys"]
    excludes_self: bool = False

    def log_pair(self, i, j):
        allowed = self.flags[j] & ((i != j) | (not self.excludes_self))
        return jnp.where(allowed, 0.0, -jnp.inf)

    def as_key_mask(self):
        return priors.KeyMask(allowed=self.flags, excludes_self=self.excludes_self)


class UpToNow(priors.Mask):
    """A causal mask of a user's own."""

    def allows(self, i, j):
        return j <= i

    def as_key_mask(self):
        return priors.KeyMask(limits=(None, 0))


OWN = FromFirst(jnp.asarray(EVEN))
OTHERS = FromFirst(jnp.asarray(EVEN), excludes_self=True)


@pytest.mark.parametrize(
    ("method", "kernel", "prior"),
    [
        (Sorted(), ak.Laplace(0.3), OTHERS),
        (Linear(), EluFeatures(), OWN * (UpToNow() & priors.HeldOut(np.arange(N) > 19))),
        (Sharded(ring=True), ak.Gaussian(0.3), OWN),
        pytest.param(
            *(Fourier(), ak.Gaussian(0.3), OWN * priors.HeldOut(~EVEN) * priors.ExcludeSelf()),
            marks=[pytest.mark.slow, needs_finufft],
        ),
    ],
    ids=["sorted", "linear, product", "sharded", "fourier, product"],
)
def test_a_prior_of_the_users_own_is_taken_as_a_key_mask(x64, method, kernel, prior):
    x = np.random.default_rng(0).normal(size=(N, 1))
    parts = kernel, prior, ak.Softmax(), x, x, np.sin(3.0 * x)
    assert_equals_dense(method, *parts, derivatives=False, rtol=1e-5, atol=1e-6)


def test_masks_of_keys_intersect():
    mask = (priors.HeldOut(EVEN) & priors.ExcludeSelf() & ak.Causal()).as_key_mask()
    np.testing.assert_array_equal(mask.allowed, ~EVEN)
    assert mask.excludes_self
    assert mask.is_causal
    assert mask.reason_beyond("excludes_self") == "a causal mask"
    assert mask.reason_beyond("excludes_self", "is_causal") is None
    windows = (ak.Window(5, 2) & ak.Window(3, 4)).as_key_mask()
    assert windows.limits == (3, 2)
    both = (ak.Causal() & ak.Window(5, 2)).as_key_mask()
    assert both.limits == (5, 0)
    assert both.reason_beyond("is_causal") == "Window"
    assert (ak.Causal() & ak.Causal()).as_key_mask().is_causal
    segments = priors.Segments(EVEN.astype(int))
    assert (segments * ak.Window(1, 1)).as_key_mask().reason_beyond("window") == "Segments"
    assert "two Segments" in (segments & segments).as_key_mask().unsupported_reason
    both = (priors.HeldOut(EVEN) * priors.HeldOut(np.arange(N) > 4)).as_key_mask()
    np.testing.assert_array_equal(both.allowed, ~EVEN & (np.arange(N) <= 4))


@pytest.mark.parametrize(
    ("prior", "reason"),
    [
        (ak.Alibi(0.3) * ak.Causal(), "Alibi"),
        (priors.HeldOut(EVEN) & ~priors.ExcludeSelf(), "Not"),
        (ak.Causal(3), "Causal of another offset than the number 0"),
        (priors.AtPositions(ak.Causal(), np.arange(N)), "AtPositions"),
    ],
)
def test_other_priors_are_no_key_masks(prior, reason):
    assert prior.as_key_mask().unsupported_reason == reason


@pytest.mark.parametrize(
    ("method", "kernel", "prior", "message"),
    [
        (Linear(), EluFeatures(), OTHERS, "got a mask that excludes the row of each query"),
        (Sorted(), ak.Laplace(), UpToNow(), "got a causal mask"),
        (Sorted(), ak.Laplace(), OWN * ak.Alibi(0.1), "got Alibi"),
        (Fourier(), ak.Gaussian(), ak.Window(2, 1), "got Window"),
        (Linear(), EluFeatures(), priors.Segments(EVEN * 1), "got Segments"),
    ],
)
def test_factors_that_a_method_does_not_take_are_named(method, kernel, prior, message):
    x = np.linspace(0.0, 1.0, N, dtype=np.float32)[:, None]
    with pytest.raises(ValueError, match=f"cannot evaluate this: it takes no prior.*{message}"):
        ak.attend(x, x, x, kernel=kernel, prior=prior, method=method)
