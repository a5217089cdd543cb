"""select_method tells what attend would do, without running it, and refuses what attend refuses."""

import re

import jax
import jax.numpy as jnp
import pytest
from marks import needs_finufft

import attnkernel as ak


def test_select_method_does_not_run():
    def shapes(n):
        return [jax.ShapeDtypeStruct((n, 4), jnp.float32)] * 3

    assert ak.select_method(*shapes(1024), kernel=ak.Gaussian(1.0)) == (ak.methods.Dense(), ())
    assert ak.select_method(*shapes(1025), kernel=ak.Gaussian(1.0)).method == ak.methods.Blockwise()
    large = ak.select_method(*shapes(10**6), kernel=ak.Gaussian(1.0))
    assert large.method == ak.methods.Blockwise()
    chosen, *refused = str(large).splitlines()
    assert chosen == "Blockwise()"
    for line, pattern in zip(
        refused,
        (r"Dense.*1000000 x 1000000.*MiB", r"Sorted.*Gaussian", r"Fourier.*3 dimensions, not 4"),
        strict=True,
    ):
        assert re.search(f"not {pattern}", line)


def test_select_method_in_one_dimension(x64):
    def selected(n, kernel):
        return ak.select_method(*[jax.ShapeDtypeStruct((n, 1), jnp.float64)] * 3, kernel=kernel)

    assert selected(2000, ak.Epanechnikov(0.3)).method == ak.methods.Sorted()
    assert selected(2000, ak.Gaussian(0.3)).method == ak.methods.Blockwise()
    assert re.search(r"4000000 .* 4194304", str(selected(2000, ak.Gaussian(0.3))))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kernel": "gaussian"}, "kernel must be a Kernel"),
        ({"q": jnp.zeros(3)}, r"q must have shape .* got \(3,\)"),
        ({"v": jax.ShapeDtypeStruct((4, 1), jnp.float32)}, "Each key needs one value"),
    ],
)
def test_select_method_rejects_invalid_arguments(as_users_run_it, changes, message):
    arguments = {"kernel": ak.Gaussian(1.0)} | {name: jnp.zeros((5, 1)) for name in "qkv"}
    with pytest.raises(ValueError, match=message):
        ak.select_method(**(arguments | changes))


@needs_finufft
def test_select_method_treats_integers_as_floats(x64):
    shapes = (jax.ShapeDtypeStruct((20_000, 1), int),) * 3
    assert ak.select_method(*shapes, kernel=ak.Gaussian(1.0)).method == ak.methods.Fourier()
