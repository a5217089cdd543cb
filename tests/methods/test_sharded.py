"""`Sharded` on eight virtual devices: it equals the dense reference, in a part of the memory."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from laws import (
    KERNELS,
    PRIORS,
    RULES,
    assert_agree,
    assert_equals_dense,
    assert_tables_agree,
    evaluate,
    evaluate_table,
    random_arrays,
    to_float64,
)
from marks import needs_finufft, slow
from refusals import assert_refused

import attnkernel as ak
from attnkernel import priors
from experiments.__main__ import main

pytestmark = pytest.mark.multi_device


def mesh(*sizes, names=("devices",)):
    return Mesh(np.array(jax.devices()[: np.prod(sizes)]).reshape(sizes), names)


INNER = {"": ak.methods.Dense(), ", blockwise": ak.methods.Blockwise(4, 8)}
MODES = {
    f"{'ring' if ring else 'keys'}{name}": ak.methods.Sharded(mesh(4), ring=ring, inner=inner)
    for ring in (False, True)
    for name, inner in INNER.items()
}
BOTH = ["keys", "ring"]
HIDDEN = np.arange(37) % 3 == 1


@pytest.mark.parametrize(
    ("kernel", "prior", "rule", "method", "derivatives"),
    [
        ("gaussian", "none", "sink", "keys, blockwise", False),
        ("epanechnikov", "held out", "uniform", "ring", False),
        ("epanechnikov", "causal", "trainable temperature", "keys", True),
        slow("gaussian", "none", "sink", "keys, blockwise", True),
        slow("gaussian", "causal", "sink", "ring, blockwise", True),
        slow("dot product", "key weights", "softmax", "keys", True),
        slow("projected", "bias in segments", "trainable temperature", "ring", True),
    ],
)
def test_value_gradient_and_jvp(x64, kernel, prior, rule, method, derivatives):
    """29 queries and 37 keys on four devices: the last parts are padded."""
    parts = *to_float64((KERNELS[kernel], PRIORS[prior], RULES[rule])), *random_arrays()
    found = evaluate(MODES[method], *parts, derivatives=derivatives)
    assert_agree(found, evaluate(ak.methods.Dense(), *parts, derivatives=derivatives))


@pytest.mark.parametrize("method", [slow("keys"), "ring"])
def test_every_prior(x64, method):
    """Positions are those of the whole arrays, not of the part on a device."""
    of_values = ("additive",), False
    assert_tables_agree(table(MODES[method], *of_values), dense_table(*of_values))


@pytest.mark.slow
@pytest.mark.parametrize("method", BOTH)
def test_gradient_and_jvp_for_every_prior(x64, method):
    of_derivatives = ("gaussian per dimension", "additive"), True
    assert_tables_agree(table(MODES[method], *of_derivatives), dense_table(*of_derivatives))


def table(method, kernels, derivatives):
    parts = list(kernels), list(PRIORS), RULES["softmax"], *random_arrays()
    return evaluate_table(method, *parts, derivatives=derivatives)


@functools.cache
def dense_table(kernels, derivatives):
    """The reference, compiled once for both layouts of the keys."""
    return table(ak.methods.Dense(), kernels, derivatives)


@pytest.mark.slow
def test_second_derivatives(x64):
    q, k, v = random_arrays(queries=6, keys=7)
    kernel = to_float64(ak.Matern52(0.6))

    @jax.jit
    def hessians(k):
        def hessian(method):
            def number(k):
                out = ak.attend(q, k, v, kernel=kernel, prior=ak.Causal(2), method=method)
                return jnp.sum(jnp.sin(out))

            return jax.hessian(number)(k)

        sharded = (
            ak.methods.Sharded(mesh(2), ring=ring, inner=ak.methods.Dense())
            for ring in (False, True)
        )
        return [hessian(method) for method in (*sharded, ak.methods.Dense())]

    of_keys, of_ring, dense = hessians(k)
    np.testing.assert_allclose(of_keys, dense, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(of_ring, dense, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("inner", "kernel", "prior", "tolerance", "ring"),
    [
        (ak.methods.Sorted(), ak.Epanechnikov(0.8), priors.HeldOut(HIDDEN), 1e-12, True),
        slow(ak.methods.Linear(), ak.kernels.EluFeatures(), None, 1e-12, False),
        slow(ak.attention.Auto(), ak.Gaussian(0.6), ak.Window(4, 2), 1e-12, True),
        slow(ak.methods.Sorted(), ak.Laplace(0.8), None, 1e-12, False),
        slow(ak.methods.Linear(), ak.kernels.EluFeatures(), None, 1e-12, True),
        *(
            pytest.param(
                *(ak.methods.Fourier(), ak.Gaussian(0.6), None, 1e-6, ring),
                marks=[pytest.mark.slow, needs_finufft],
            )
            for ring in (False, True)
        ),
    ],
)
def test_every_inner_method(x64, inner, kernel, prior, tolerance, ring):
    q, k, v = random_arrays(dim=1)
    if isinstance(inner, ak.methods.Linear):
        q, k = np.abs(q), np.abs(k)
    method = ak.methods.Sharded(mesh(3), ring=ring, inner=inner)
    parts = to_float64(kernel), prior, ak.Softmax(), q, k, v
    assert_equals_dense(method, *parts, derivatives=False, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("method", BOTH)
def test_distant_parts_and_empty_rows(x64, method):
    """Parts whose weights differ by e^-50000, and a query that sees no key of any part."""
    q, v = np.array([[1.0], [99.0], [50.0]]), np.arange(16.0)[:, None]
    k = np.repeat([[0.0], [100.0]], 8, axis=0)
    parts = (
        to_float64(ak.Gaussian(0.3)),
        priors.MaskFunction(lambda i, j: i < 2),
        ak.Softmax(),
        q,
        k,
        v,
    )
    ours, dense = evaluate((MODES[method], ak.methods.Dense()), *parts, derivatives=False)
    np.testing.assert_allclose(ours[0], [[3.5], [11.5], [0.0]], rtol=1e-12)
    np.testing.assert_allclose(ours[1], dense[1], rtol=1e-6)
    assert np.isneginf(ours[1][2])


@pytest.mark.slow
@pytest.mark.parametrize("method", BOTH)
def test_heads_and_batches(x64, method):
    data = [np.stack([rows, rows + 0.1, -rows])[:, None] for rows in random_arrays()]
    kernel = ak.PerHead(to_float64(ak.Gaussian(np.array([0.3, 1.0]))))
    assert_equals_dense(MODES[method], kernel, ak.Causal(), ak.Softmax(), *data)


@pytest.mark.slow
@pytest.mark.parametrize("ring", [False, True])
def test_batch_over_another_mesh_axis(x64, ring):
    both = mesh(2, 4, names=("data", "devices"))
    data = tuple(np.stack([rows, rows + 0.1]) for rows in random_arrays(queries=32, keys=40))
    places = NamedSharding(both, PartitionSpec("data", "devices"))
    laid_out = [jax.device_put(rows, places) for rows in data]
    call = jax.jit(functools.partial(ak.attend, kernel=ak.Gaussian(0.6), prior=ak.Causal()))
    ours = functools.partial(call, method=ak.methods.Sharded(both, ring=ring))
    np.testing.assert_allclose(ours(*laid_out), call(*data, method=ak.methods.Dense()), rtol=1e-12)


@pytest.mark.slow
def test_ring_keeps_the_sharding_of_queries(x64):
    ring = ak.methods.Sharded(mesh(8), ring=True)
    places = NamedSharding(ring.mesh, PartitionSpec("devices"))
    data = random_arrays(queries=32, keys=40)
    out = ak.attend(
        *(jax.device_put(rows, places) for rows in data), kernel=ak.Gaussian(0.6), method=ring
    )
    assert out.sharding.is_equivalent_to(places, 2)
    np.testing.assert_allclose(
        out, ak.attend(*data, kernel=ak.Gaussian(0.6), method=ak.methods.Dense()), rtol=1e-12
    )


@pytest.mark.slow
def test_ring_memory_per_device_falls_with_devices():
    def used(devices):
        ring = ak.methods.Sharded(mesh(devices), ring=True, inner=ak.methods.Blockwise(32, 32))
        places = NamedSharding(ring.mesh, PartitionSpec("devices"))
        shape = jax.ShapeDtypeStruct((16384, 16), jnp.float32, sharding=places)

        def number(q, k, v):
            return jnp.sum(ak.attend(q, k, v, kernel=ak.Gaussian(0.3), method=ring) ** 2)

        gradient = jax.jit(jax.grad(number, (0, 1, 2)), out_shardings=(places,) * 3)
        compiled = gradient.lower(shape, shape, shape).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert used(8) < 0.3 * used(2)


@pytest.mark.parametrize(
    ("ring", "order"),
    [(True, 0), (False, 1)],
)
@pytest.mark.slow
def test_fit_on_a_mesh(x64, ring, order):
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(50, 1))
    y = np.sin(6 * x[:, 0]) + 0.1 * rng.normal(size=50)

    def lengthscale(method):
        model = ak.KernelRegression(ak.Gaussian(0.1), order=order, method=method)
        found = ak.fit(model, x, y, objective=ak.LeaveOneOut(), starts=1)
        return found.model.kernel.lengthscale

    ours = lengthscale(ak.methods.Sharded(mesh(2), ring=ring, inner=ak.methods.Dense()))
    np.testing.assert_allclose(ours, lengthscale(ak.methods.Dense()), rtol=1e-7)


def test_invalid_meshes(as_users_run_it):
    assert_refused(
        (lambda: ak.methods.Sharded(mesh(2), "rows"), "axis.*devices.*'rows'"),
        (lambda: ak.methods.Sharded("all"), "mesh.*'all'"),
        (
            lambda: ak.methods.Sharded(
                jax.make_mesh((2,), ("devices",), axis_types=(AxisType.Explicit,))
            ),
            "devices.*Auto.*Explicit",
        ),
        (
            lambda: ak.methods.Sharded(mesh(2), inner=ak.methods.Sharded(mesh(2))),
            "inner.*Blockwise.*Sharded",
        ),
    )


@pytest.mark.parametrize(
    ("rule", "inner", "message"),
    [
        (ak.Entmax(1.5), ak.methods.Blockwise(), "Sharded.*Entmax.*keys"),
        (ak.Softmax(), ak.methods.Sorted(), "Sorted.*kernels"),
    ],
)
def test_unsupported_tasks_are_refused(rule, inner, message):
    with pytest.raises(ValueError, match=message):
        ak.attend(
            *random_arrays(),
            kernel=ak.Gaussian(0.3),
            rule=rule,
            method=ak.methods.Sharded(mesh(2), inner=inner),
        )


def test_default_mesh_is_all_devices():
    assert ak.methods.Sharded().devices == 8
    data = random_arrays(keys=5)  # fewer keys than devices: some hold padding alone
    parts = ak.Gaussian(0.3), None, ak.Softmax(), *data
    assert_equals_dense(ak.methods.Sharded(), *parts, derivatives=False, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_scaling_study(tmp_path):
    (tmp_path / "scaling.yaml").write_text(
        "study: scaling\ndevices: [1, 3]\nn: 1024\ndim: 5\nchecked: 37\n"
    )
    out = tmp_path / "out"
    assert main(["run", str(tmp_path / "scaling.yaml"), "--out", str(out), "--quiet"]) == 0
    summary = json.loads((out / "summary.json").read_text())
    assert summary["worst_error"] < 1e-12
    ring = [row for row in summary["table"] if row["layout"] == "ring"]
    assert [row["devices"] for row in ring] == [1, 3]
    assert ring[1]["value_mib"] < 0.6 * ring[0]["value_mib"]
    # 4 d / F = 5.2e-13 s a pair, 2 d b / W = 1.1e-9 s a row: 2198 rows on each of 8
    assert 17_500 < summary["rows_from_which_sending_hides"]["8 H100, bf16, NVLink"][-1] < 17_700
