"""Many fits in one program: each equals the fit alone; members, and batches that are refused."""

import jax
import numpy as np
import optax
import pytest
from noisy_sine import model, sample

import attnkernel as ak

ADAM = optax.adam(0.1)


@pytest.mark.slow
def test_trainings_of_several_hold_out_sizes_equal_single_fits(x64, programs):
    x, y = sample()
    keys = np.array([[0, 1], [1, 2], [2, 3]], np.uint32)
    sizes, options = np.array([1, 4, 9]), {"optimizer": ADAM, "steps": 7}
    objective = ak.HoldOut(sizes, at_most=9)
    axes = (None, None, 0)
    many = ak.fit_many(
        model(), x, y, objective=objective, in_axes=axes, key=jax.device_put(keys), **options
    )
    for i, size in enumerate(sizes):
        own = ak.HoldOut(jax.device_put(size), at_most=9)
        alone = ak.fit(model(), x, y, objective=own, key=jax.device_put(keys[i]), **options)
        programs.clear()
        member = many.member(i)
        assert not programs  # arrays are indexed by NumPy
        np.testing.assert_allclose(member.history["loss"], alone.history["loss"], rtol=1e-9)
        np.testing.assert_allclose(
            member.model.kernel.lengthscale, alone.model.kernel.lengthscale, rtol=1e-9
        )
        np.testing.assert_allclose(member(x), alone(x), rtol=1e-9)


@pytest.mark.slow
def test_searches_of_several_data_sets_equal_single_fits(x64):
    data = [sample(seed=seed) for seed in range(2)]
    x, y = (np.stack(parts) for parts in zip(*data, strict=True))
    many = ak.fit_many(model(), x, y, objective=ak.LeaveOneOut(), in_axes=(None, 0, None))
    for i in range(2):
        alone = ak.fit(model(), *data[i], objective=ak.LeaveOneOut())
        np.testing.assert_allclose(np.asarray(many.loss)[i], alone.loss, rtol=1e-9)
        member = many.member(i)
        np.testing.assert_allclose(
            member.model.kernel.lengthscale, alone.model.kernel.lengthscale, rtol=1e-6
        )
        np.testing.assert_array_equal(member.x, data[i][0])
        np.testing.assert_array_equal(member.y, data[i][1])


def test_what_only_one_fit_has_is_refused_of_a_batch():
    x, y = map(np.asarray, sample())
    options = {"optimizer": ADAM, "steps": 1, "in_axes": (None, 0, None)}
    many = ak.fit_many(model(), x[None], y[None], objective=ak.LeaveOneOut(), **options)
    with pytest.raises(ValueError, match=r"fit.member\(i\)"):
        many.minima()
    with pytest.raises(ValueError, match=r"fit.member\(i\)\(x_new\)"):
        many(x)
    with pytest.raises(IndexError, match="1 fits; got member 1"):
        many.member(1)
    with pytest.raises(ValueError, match="members"):
        many.member(0).member(0)


@pytest.mark.parametrize(
    ("models", "keys", "options", "message"),
    [
        pytest.param(1, None, {}, r"model \[\(\)\]", id="one model"),
        pytest.param(3, None, {}, "objective no array", id="one objective"),
        pytest.param(
            3, 2, {"in_axes": (0, None, None)}, r"model \[\(3,\)\]; key \[\(2,\)\]", id="two keys"
        ),
        pytest.param(1, None, {"in_axes": (None, None, None)}, "in_axes", id="all shared"),
    ],
)
def test_batches_that_are_refused(models, keys, options, message):
    several = model() if models == 1 else model(np.arange(1.0, models + 1.0))
    key = None if keys is None else jax.device_put(np.zeros((keys, 2), np.uint32))
    with pytest.raises(ValueError, match=message):
        ak.fit_many(several, *sample(), objective=ak.LeaveOneOut(), key=key, **options)
