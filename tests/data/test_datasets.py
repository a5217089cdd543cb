"""Data: the simulated truth, and the bundled files against what is known of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnkernel as ak

ROWS = {"cps71": 205, "ethanol": 88, "faithful": 272, "geyser": 299, "mcycle": 133, "wage1": 526}


def test_heteroskedastic_is_its_formula(x64, programs):
    key = jax.random.PRNGKey(0)
    programs.clear()
    data = ak.data.heteroskedastic(key=key, n=31)
    assert len(programs) <= 1  # none if a test before drew as many
    x = np.linspace(-3, 3, 31)
    mean = 0.5 * np.sin(x) - np.sin(3 * x) + x**2 / 5
    sd = 0.2 + 0.05 * np.abs(x)
    noise = np.asarray(jax.random.normal(key, (31,), dtype=jnp.float32), float)
    assert data.x.shape == (31, 1)
    np.testing.assert_allclose(np.asarray(data.x)[:, 0], x, rtol=1e-14, atol=1e-14)
    np.testing.assert_allclose(data.mean, mean, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(data.sd, sd, rtol=1e-14)
    np.testing.assert_allclose(data.y, mean + sd * noise, rtol=1e-13, atol=1e-13)


def test_a_key_gives_the_same_data_in_float32_and_float64():
    key = jax.random.PRNGKey(7)
    narrow = ak.data.heteroskedastic(key=key)
    with jax.enable_x64(True):
        wide = ak.data.heteroskedastic(key=key)
    np.testing.assert_allclose(narrow.y, wide.y, atol=2e-6)


@pytest.mark.parametrize("name", ak.data.BUNDLED)
def test_bundled_data_are_complete(name):
    data = ak.data.load(name)
    assert data.x.shape == (ROWS[name], len(data.x_names))
    assert data.y.shape == (ROWS[name],)
    assert np.isfinite(data.x).all()
    assert np.isfinite(data.y).all()


def test_other_columns_of_a_bundled_data_set():
    data = ak.data.load("ethanol", x=["E", "C"])
    assert data.x_names == ("equivalence ratio", "compression ratio")
    assert set(np.unique(np.asarray(data.x)[:, 1]).tolist()) == {7.5, 9, 12, 15, 18}


def test_an_unknown_bundled_data_set_lists_the_known():
    with pytest.raises(ValueError, match=r"name.*'cps71', 'ethanol', 'faithful'.*'cars'"):
        ak.data.load("cars")


def test_too_few_points_are_refused():
    with pytest.raises(ValueError, match=r"n must be an integer, at least 3; got 2"):
        ak.data.heteroskedastic(key=jax.random.PRNGKey(0), n=2)
