"""`Sharded` on eight virtual devices: it equals the dense reference, in a part of the memory;
attention of arrays on a mesh."""

import contextlib
import functools
import json

import equinox as eqx
import jax
import jax.numpy as jnp
import laws
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from marks import needs_finufft, slow
from refusals import assert_raises

import attnkernel as ak
from attnkernel import priors
from attnkernel.kernels import AdditiveScore, EluFeatures, Triweight
from attnkernel.methods import Blockwise, Dense, Fourier, Linear, Sharded, Sorted
from experiments.__main__ import main

pytestmark = pytest.mark.multi_device


def mesh(*sizes, names=("devices",)):
    return Mesh(np.array(jax.devices()[: np.prod(sizes)]).reshape(sizes), names)


INNER = {"": Dense(), ", blockwise": Blockwise(4, 8)}
MODES = {
    f"{'ring' if ring else 'keys'}{name}": Sharded(mesh(4), ring=ring, inner=inner)
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
    parts = laws.to_float64((laws.KERNELS[kernel], laws.PRIORS[prior], laws.RULES[rule]))
    parts = *parts, *laws.random_arrays()
    found = laws.evaluate(MODES[method], *parts, derivatives=derivatives)
    laws.assert_agree(found, laws.evaluate(Dense(), *parts, derivatives=derivatives))


@pytest.mark.parametrize(
    ("method", "kernels", "derivatives"),
    [
        ("ring", ["additive"], False),
        *(slow(method, ["gaussian per dimension", "additive"], True) for method in BOTH),
    ],
)
def test_every_prior(x64, method, kernels, derivatives):
    """Positions are those of the whole arrays, not of the part on a device."""
    parts = kernels, list(laws.PRIORS), laws.RULES["softmax"], *laws.random_arrays()
    # in one program XLA fails to partition scatters of the dense derivatives
    found, expected = (
        laws.evaluate_table(each, *parts, derivatives=derivatives)
        for each in (MODES[method], Dense())
    )
    laws.assert_tables_agree(found, expected)


@pytest.mark.slow
def test_second_derivatives(x64):
    q, k, v = laws.random_arrays(queries=6, keys=7)
    kernel = laws.to_float64(ak.Matern52(0.6))

    @jax.jit
    def hessians(k):
        def hessian(method):
            def number(k):
                out = ak.attend(q, k, v, kernel=kernel, prior=ak.Causal(2), method=method)
                return jnp.sum(jnp.sin(out))

            return jax.hessian(number)(k)

        sharded = (Sharded(mesh(2), ring=ring, inner=Dense()) for ring in (False, True))
        return [hessian(method) for method in (*sharded, Dense())]

    *of_both, dense = hessians(k)
    np.testing.assert_allclose(of_both, [dense, dense], rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("inner", "kernel", "prior", "tolerance", "ring"),
    [
        (Sorted(), ak.Epanechnikov(0.8), priors.HeldOut(HIDDEN), 1e-12, True),
        (Linear(), EluFeatures(), None, 1e-12, False),
        (ak.attention.Auto(), ak.Gaussian(0.6), ak.Window(4, 2), 1e-12, True),
        (Linear(), EluFeatures(), None, 1e-12, True),
        pytest.param(Fourier(), ak.Gaussian(0.6), None, 1e-6, True, marks=needs_finufft),
    ],
)
def test_every_inner_method(x64, inner, kernel, prior, tolerance, ring):
    q, k, v = laws.random_arrays(dim=1)
    if isinstance(inner, Linear):
        q, k = np.abs(q), np.abs(k)
    method = Sharded(mesh(3), ring=ring, inner=inner)
    parts = laws.to_float64(kernel), prior, ak.Softmax(), q, k, v
    laws.assert_equals_dense(method, *parts, derivatives=False, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("method", BOTH)
def test_distant_parts_and_empty_rows(x64, method):
    """Parts whose weights differ by e^-50000, and a query that sees no key of any part."""
    q, v = np.array([[1.0], [99.0], [50.0]]), np.arange(16.0)[:, None]
    k = np.repeat([[0.0], [100.0]], 8, axis=0)
    kernel, prior = laws.to_float64(ak.Gaussian(0.3)), priors.MaskFunction(lambda i, j: i < 2)
    parts = kernel, prior, ak.Softmax(), q, k, v
    ours, dense = laws.evaluate((MODES[method], Dense()), *parts, derivatives=False)
    np.testing.assert_allclose(ours[0], [[3.5], [11.5], [0.0]], rtol=1e-12)
    np.testing.assert_allclose(ours[1], dense[1], rtol=1e-6)
    assert np.isneginf(ours[1][2])


@pytest.mark.slow
@pytest.mark.parametrize("method", BOTH)
def test_heads_and_batches(x64, method):
    data = [np.stack([rows, rows + 0.1, -rows])[:, None] for rows in laws.random_arrays()]
    kernel = ak.PerHead(laws.to_float64(ak.Gaussian(np.array([0.3, 1.0]))))
    laws.assert_equals_dense(MODES[method], kernel, ak.Causal(), ak.Softmax(), *data)


@pytest.mark.slow
@pytest.mark.parametrize("ring", [False, True])
def test_batch_over_another_mesh_axis(x64, ring):
    both = mesh(2, 4, names=("data", "devices"))
    data = tuple(np.stack([rows, rows + 0.1]) for rows in laws.random_arrays(queries=32, keys=40))
    places = NamedSharding(both, PartitionSpec("data", "devices"))
    laid_out = [jax.device_put(rows, places) for rows in data]
    call = jax.jit(functools.partial(ak.attend, kernel=ak.Gaussian(0.6), prior=ak.Causal()))
    ours = functools.partial(call, method=Sharded(both, ring=ring))
    np.testing.assert_allclose(ours(*laid_out), call(*data, method=Dense()), rtol=1e-12)


@pytest.mark.slow
def test_ring_keeps_the_sharding_of_queries(x64):
    ring = Sharded(mesh(8), ring=True)
    places = NamedSharding(ring.mesh, PartitionSpec("devices"))
    data = laws.random_arrays(queries=32, keys=40)
    attended = functools.partial(ak.attend, kernel=ak.Gaussian(0.6))
    out = attended(*(jax.device_put(rows, places) for rows in data), method=ring)
    assert out.sharding.is_equivalent_to(places, 2)
    np.testing.assert_allclose(out, attended(*data, method=Dense()), rtol=1e-12)


def test_invalid_meshes(as_users_run_it):
    assert_raises("axis.*devices.*'rows'", Sharded, mesh(2), "rows")
    assert_raises("mesh.*'all'", Sharded, "all")
    explicit = jax.make_mesh((2,), ("devices",), axis_types=(AxisType.Explicit,))
    assert_raises("devices.*Auto.*Explicit", Sharded, explicit)
    assert_raises("inner.*Blockwise.*Sharded", Sharded, mesh(2), inner=Sharded(mesh(2)))


def test_default_mesh_is_all_devices():
    assert Sharded().devices == 8
    # fewer keys than devices: some hold padding alone
    parts = ak.Gaussian(0.3), None, ak.Softmax(), *laws.random_arrays(keys=5)
    laws.assert_equals_dense(Sharded(), *parts, derivatives=False, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_scaling_study(tmp_path):
    (tmp_path / "scaling.yaml").write_text(
        "study: scaling\ndevices: [1, 3]\nn: 1024\ndim: 5\nchecked: 37\n"
        "busy_rows: 64\nbusy_seconds: 0.01\n"
    )
    out = tmp_path / "out"
    assert main(["run", str(tmp_path / "scaling.yaml"), "--out", str(out), "--quiet"]) == 0
    summary = json.loads((out / "summary.json").read_text())
    assert summary["worst_error"] < 1e-12
    assert all(row["busy_cores"] > 0 for row in summary["busy"])
    ring = [row for row in summary["table"] if row["layout"] == "ring"]
    assert [row["devices"] for row in ring] == [1, 3]
    for part in ("value_mib", "gradient_mib"):  # memory per device falls with devices
        assert ring[1][part] < 0.6 * ring[0][part]
    # 4 d / F = 5.2e-13 s a pair, 2 d b / W = 1.1e-9 s a row: 2198 rows on each of 8
    assert 17_500 < summary["rows_from_which_sending_hides"]["8 H100, bf16, NVLink"][-1] < 17_700


BATCH, ROWS, DIM = 8, 16, 3
EACH, WHOLE = PartitionSpec("d"), PartitionSpec()
EACH_ROW = PartitionSpec(None, "d")


def mesh_of(kind):
    return jax.make_mesh((2,), ("d",), axis_types=(kind,), devices=jax.devices()[:2])


def data():
    return tuple(np.random.default_rng(0).normal(size=(3, BATCH, ROWS, DIM)))


def line(q, k, v, **parts):
    """Attention over the first column alone."""
    return ak.attend(q[..., :1], k[..., :1], v, **parts)


def one_value(q, k, v, **parts):
    """Attention over one column of values, as large sums of cheap kernels store no weights."""
    return ak.attend(q, k, v[..., :1], **parts)


def many_columns(q, k, v, **parts):
    """Attention over so many columns that squared distances of many pairs are products."""
    twice = [jnp.concatenate([points, points**2], axis=-1) for points in (q, k)]
    return ak.attend(*twice, v, **parts)


def regression(q, k, v, **parts):
    """The local linear fit of each member of the batch."""
    return jax.vmap(ak.KernelRegression(order=1, **parts))(q, k, v)


def nearest(q, k, v, **parts):
    """Regression where many queries are out of reach of all labels: each takes the nearest."""
    return jax.vmap(ak.KernelRegression(on_empty="nearest", **parts))(q, k, v)


def heads(q, k, v, **parts):
    """The heads of `MultiheadAttention` of each member of the batch."""
    module = ak.MultiheadAttention(3, DIM, key=jax.random.key(0), **parts)
    return jax.vmap(module)(q, k, v)


def weights(q, k, v, **parts):
    return ak.attention_weights(q, k, **{name: parts[name] for name in parts if name != "method"})


GAUSS, DOT, ELU = ({"kernel": k} for k in (ak.Gaussian(0.7), ak.DotProduct(), EluFeatures()))
BLOCKS, CAUSAL = {"method": Blockwise(4, 4)}, {"prior": ak.Causal()}
ENTMAX, PER_HEAD = {"rule": ak.Entmax(1.5)}, ak.PerHead(ak.Gaussian(np.linspace(0.5, 2.0, 8)))
WITHIN = {
    "causal": {"causal": (ak.attend, GAUSS | BLOCKS | CAUSAL)},
    "blocks": {
        "blocks": (ak.attend, GAUSS | BLOCKS),
        "entmax": (ak.attend, GAUSS | BLOCKS | ENTMAX),
        "dense entmax": (ak.attend, GAUSS | ENTMAX | {"method": Dense()}),
    },
    "unmaterialised": {"unmaterialised": (one_value, GAUSS | {"method": Blockwise(8, 8)})},
    "sorted": {
        "laplace": (line, {"kernel": ak.Laplace(0.7), "method": Sorted()}),
        "compact": (line, {"kernel": Triweight(0.7), "method": Sorted()}),
    },
    "fourier": {"fourier": (line, GAUSS | {"method": Fourier()})},
    "kernels": {
        "additive": (ak.attend, {"kernel": AdditiveScore(np.arange(1.0, DIM + 1))}),
        "many columns": (many_columns, {"kernel": ak.Gaussian(np.linspace(0.7, 3.0, 2 * DIM))}),
        "neighbours": (ak.attend, {"kernel": ak.NearestNeighbours(ak.Gaussian(0.7), 0.5)}),
    },
    "linear": {
        "linear": (ak.attend, ELU | {"method": Linear()}),
        "causal linear": (ak.attend, ELU | CAUSAL | {"method": Linear()}),
        "linear in blocks": (ak.attend, ELU | BLOCKS),
    },
    "models": {
        "local linear in blocks": (regression, GAUSS | BLOCKS),
        "heads": (heads, DOT),
        "local linear heads": (heads, GAUSS | {"order": 1}),
    },
}
OVER_QUERIES = WITHIN["blocks"] | {"laplace": WITHIN["sorted"]["laplace"]}
EXPLICIT = {
    "blocks": {"blocks": (ak.attend, DOT | BLOCKS | CAUSAL)},
    "sums": {
        "dense": (ak.attend, DOT | {"method": Dense()}),
        "entmax": (ak.attend, DOT | BLOCKS | ENTMAX),
        "heads": (ak.attend, {"kernel": PER_HEAD} | BLOCKS),
        "linear": (ak.attend, ELU | {"method": Linear()}),
    },
    "functions": {
        "local linear": (regression, GAUSS),
        "nearest": (nearest, {"kernel": Triweight(0.3)}),
        "heads of a module": (heads, DOT),
        "weights": (weights, GAUSS),
    },
}


def values_and_gradients(cases, kernels, q, k, v):
    """By case the outputs, and the gradients of a sum of them in the kernel, q, k and v."""

    def of_case(name):
        function, parts = cases[name]
        moving, fixed = eqx.partition(kernels[name], eqx.is_inexact_array)

        def number(moving, q, k, v):
            out = function(q, k, v, **parts | {"kernel": eqx.combine(moving, fixed)})
            return jnp.sum(jnp.sin(out)), out

        return jax.grad(number, (0, 1, 2, 3), has_aux=True)(moving, q, k, v)

    return {name: of_case(name) for name in cases}


def kernels_of(cases):
    return {name: parts["kernel"] for name, (_, parts) in cases.items()}


def assert_equal_to_dense(cases, *results):
    """Checks results on meshes against the dense reference without one."""
    of_method = {"method": Dense()}
    dense = {name: (function, parts | of_method) for name, (function, parts) in cases.items()}
    expected = jax.jit(functools.partial(values_and_gradients, dense))(kernels_of(cases), *data())
    tolerance = {"rtol": 1e-6, "atol": 1e-7} if "fourier" in cases else {"rtol": 1e-9, "atol": 1e-9}
    for found in results:
        for name in cases:
            both = map(jax.tree.leaves, (found[name], expected[name]))
            for one, other in zip(*both, strict=True):
                np.testing.assert_allclose(np.asarray(one), other, **tolerance, err_msg=name)


@pytest.mark.parametrize("group", ["blocks", slow("sums"), slow("functions")])
def test_explicit_axes(x64, group):
    """Values and gradients of arrays that are cut between members and between rows; the value is
    laid out as the queries are. Users may set the mesh."""
    mesh, cases = mesh_of(AxisType.Explicit), EXPLICIT[group]
    run = jax.jit(functools.partial(values_and_gradients, cases))
    results = []
    for spec in (EACH, EACH_ROW):
        with jax.set_mesh(mesh) if spec is EACH_ROW else contextlib.nullcontext():
            on_mesh = [jax.device_put(part, NamedSharding(mesh, spec)) for part in data()]
            results.append(run(kernels_of(cases), *on_mesh))
        for name, (_, value) in results[-1].items():
            assert tuple(value.sharding.spec)[: len(spec)] == tuple(spec), name
    assert_equal_to_dense(cases, *results)


@pytest.mark.parametrize(
    "group",
    [
        "causal",
        *(slow(name) for name in WITHIN if name not in ("causal", "fourier")),
        pytest.param("fourier", marks=[pytest.mark.slow, needs_finufft]),
    ],
)
def test_shard_map(x64, group, request, monkeypatch):
    """Within `jax.shard_map` over the batch, which checks along which axes arrays vary."""
    if group == "unmaterialised":
        request.getfixturevalue("force_unmaterialised")
    if group == "kernels":
        monkeypatch.setattr("attnkernel.kernels._distances.MAX_UNROLLED_PAIRS", 0)
    with jax.numpy_rank_promotion("allow" if group == "fourier" else "raise"):
        assert_mapped_is_dense(WITHIN[group], (EACH, EACH, EACH), EACH)


@pytest.mark.slow
def test_shard_map_over_the_queries(x64):
    """Keys and values are whole on every device."""
    assert_mapped_is_dense(OVER_QUERIES, (EACH_ROW, WHOLE, WHOLE), EACH_ROW)


def assert_mapped_is_dense(cases, of_arrays, of_output):
    """Values and gradients; those in what is whole on every device are summed over the devices."""
    within = jax.shard_map(
        functools.partial(values_and_gradients, cases),
        mesh=mesh_of(AxisType.Auto),
        in_specs=(WHOLE, *of_arrays),
        out_specs=dict.fromkeys(cases, ((WHOLE, *of_arrays), of_output)),
    )
    assert_equal_to_dense(cases, jax.jit(within)(kernels_of(cases), *data()))
