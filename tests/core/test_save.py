"""Files of models: loading gives what was saved; damaged and forged files are refused."""

import hashlib
import json
import os
import tracemalloc
from collections.abc import Callable
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import assert_raises

import attnkernel as ak
from attnkernel._core.saving import read_tree, write_tree


class Own(ak.kernels.Kernel):
    """A kernel that a user defines."""

    scale: jax.Array
    name: str = eqx.field(static=True, default="mine")

    def log_pair(self, q, k):
        return -jnp.sum(jnp.abs(q - k)) / self.scale


@pytest.fixture(scope="module")
def models():
    plain = {"a": [1, 2.5, None, True], "b": ("x", np.arange(3), np.float32(2.5), float("nan"))}
    return make_models(jax.random.PRNGKey(0)) | {"plain": plain}


@eqx.filter_jit
def make_models(key):
    mixed = ak.OnColumns(ak.Gaussian(0.5), 0) * ak.OnColumns(ak.kernels.AitchisonAitken(0.2, 3), 1)
    stack = eqx.filter_vmap(ak.Gaussian)(jnp.linspace(0.1, 3.0, 5))
    masked = {"prior": ak.Causal() & ak.Window(5, 0), "rotary": ak.Rotary(base=100.0)}
    embedding = eqx.nn.MLP(3, 5, 7, 2, activation=jnp.tanh, key=key)
    return {
        "gaussian": ak.Gaussian(0.3),
        "regression": ak.KernelRegression(mixed, order=1, on_empty="nearest"),
        "bias reduced": ak.models.BiasReduced(ak.KernelRegression(ak.Gaussian(0.3)), 3),
        "heads": ak.MultiheadKernelRegression(ak.PerHead(stack), rule=ak.Entmax(1.5)),
        "attention": ak.MultiheadAttention(3, 12, **masked, key=key),
        "learned": ak.LearnedKernelRegression(3, 2, embedding=embedding, key=key),
        "bfloat16": ak.nn.KVCache(7, 2, 4, 4, dtype=jnp.bfloat16),
    }


def assert_equal(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        assert type(one) is type(other)
        assert getattr(one, "dtype", None) == getattr(other, "dtype", None)
        np.testing.assert_array_equal(one, other)


def assert_not_loaded(message, path):
    with pytest.raises(ak.SavedFileError, match=message):
        ak.load(path)


@pytest.mark.parametrize(
    "name", ["gaussian", "regression", "bias reduced", "heads", "attention", "learned"]
)
def test_a_loaded_model_equals_the_saved_one(tmp_path, models, name):
    model = models[name]
    ak.save(tmp_path / "model", model)
    assert_equal(ak.load(tmp_path / "model"), model)


def test_a_loaded_fit_predicts_as_the_saved_one(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.uniform(size=31)
    y = np.sin(6 * x) + 0.1 * rng.normal(size=31)
    model = ak.KernelRegression(ak.Gaussian(1.0))
    fit = ak.fit(model, x, y, objective=ak.LeaveOneOut(), starts=1)
    ak.save(tmp_path / "fit", fit)
    back = ak.load(tmp_path / "fit")
    assert_equal(back.model, fit.model)
    np.testing.assert_array_equal(back(x[:7]), fit(x[:7]))
    assert back.objective.score is None
    ak.save(tmp_path / "again", back)
    assert (tmp_path / "again").read_bytes() == (tmp_path / "fit").read_bytes()


draw = jax.jit(jax.random.normal)


def test_plain_data_bfloat16_and_keys_are_kept(tmp_path, models):
    for name in ("bfloat16", "plain"):
        write_tree(tmp_path / name, models[name], {"n": 3})
        saved = read_tree(tmp_path / name)
        assert saved.metadata == {"n": 3}
        assert_equal(saved.tree, models[name])
    for key in (jax.random.key(3), jax.random.PRNGKey(3)):
        ak.save(tmp_path / "key", [key])
        (back,) = ak.load(tmp_path / "key")
        np.testing.assert_array_equal(*map(draw, (back, key)))


WHOLE = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (4, 8, 16, 32)]
NUMERIC = f"bool {' '.join(WHOLE)} float8_e4m3fn float8_e5m2 bfloat16 float16 float32 complex64"


def test_every_numeric_dtype_is_kept(tmp_path):
    ours = {name: np.array([0, 1, 1], jnp.dtype(name)) for name in NUMERIC.split()}
    wide = {name: np.array([0, 1], name) for name in ("int64", "uint64", "float64", "complex128")}
    arrays = jax.device_put(ours) | wide
    ak.save(tmp_path / "m", arrays | {k: a.astype(a.dtype.newbyteorder()) for k, a in wide.items()})
    loaded = ak.load(tmp_path / "m")
    assert_equal(loaded, arrays)
    assert all(array.dtype == name for name, array in loaded.items())


def absolute_error(predicted, y):
    return jnp.abs(predicted - y)


class OwnActivation(eqx.Module):
    """A layer that names the functions which its field may hold."""

    saved_functions: ClassVar = {"absolute_error": absolute_error}
    function: Callable = absolute_error


def test_a_class_names_the_functions_that_its_fields_may_hold(tmp_path):
    ak.save(tmp_path / "m", OwnActivation())
    assert ak.load(tmp_path / "m", classes=[OwnActivation]).function is absolute_error
    with pytest.raises(ValueError, match=r"\.score is <function absolute_error"):
        ak.save(tmp_path / "m", ak.LeaveOneOut(score=absolute_error))


def test_a_class_of_the_user_must_be_given_to_load(tmp_path):
    model = ak.KernelRegression(Own(jnp.asarray(0.7)))
    ak.save(tmp_path / "own", model)
    assert_not_loaded(r"classes=\[Own\]", tmp_path / "own")
    assert_equal(ak.load(tmp_path / "own", classes=[Own]), model)


def test_functions_tracers_and_objects_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"\.function is <function.*eqx\.Module"):
        ak.save(tmp_path / "f", ak.priors.MaskFunction(lambda i, j: i > j))
    with pytest.raises(ValueError, match="outside"):
        jax.jit(lambda scale: ak.save(tmp_path / "f", ak.Gaussian(scale)))(1.0)
    assert_raises("objects of Python", ak.save, tmp_path / "f", [np.array([{}])])
    assert not list(tmp_path.iterdir())


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    ak.save(tmp_path / "m", ak.Gaussian(1.0))

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        ak.save(tmp_path / "m", ak.Gaussian(2.0))
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
    assert ak.load(tmp_path / "m").lengthscale == 1.0


def test_every_damaged_file_is_refused(tmp_path, models):
    path = tmp_path / "m"
    ak.save(path, models["attention"])
    whole = path.read_bytes()
    for bad in (b"", whole[:5], whole[:200], whole[:-1], whole + b"0", b"PK" + whole):
        path.write_bytes(bad)
        assert_not_loaded(r"damaged|not of ours", path)
    rng = np.random.default_rng(0)
    for place in rng.integers(0, len(whole), 300):  # one bit each
        bad = bytearray(whole)
        bad[place] ^= 1 << rng.integers(8)
        path.write_bytes(bad)
        assert_not_loaded(".", path)
    path.write_bytes(whole.replace(b"attnkernel 1", b"attnkernel 2", 1))
    assert_not_loaded("newer", path)
    assert_not_loaded("No such file", tmp_path / "none")


def forged(path, change):
    """Replaces the header of a file, with checksums that match."""
    magic, _, rest = path.read_bytes().partition(b"\n")
    line, _, payload = rest.partition(b"\n")
    header = json.loads(line.partition(b" ")[2])
    payload = change(header, payload) or payload
    text = json.dumps(header).encode()
    checksum = hashlib.sha256(text + payload).hexdigest().encode()
    path.write_bytes(magic + b"\n" + checksum + b" " + text + b"\n" + payload)


def test_a_forged_file_creates_only_registered_classes(tmp_path):
    path = tmp_path / "m"

    def module(name):
        return lambda header, _: header["tree"].update(module=name)

    def leaf(**new):
        return lambda header, _: header["leaves"][0].update(new)

    for change, message in (
        (module("os.system"), r"os\.system"),
        (module("models.KernelRegression"), "another version"),
        (leaf(dtype="O"), "only numbers are saved"),
        (leaf(dtype="V0", shape=[10**9]), "only numbers are saved"),
        (leaf(shape=[0, 10**12]), "no shape of an array"),
        (leaf(shape=[2**30]), "its arrays are of 4294967296 bytes, and it holds 4"),
        (lambda header, _: header.update(leaves=100_000 * header["leaves"]), "100000 arrays"),
        (lambda header, _: header["tree"]["fields"].pop("metric_parameter"), "no metric_par"),
        (leaf(dtype="evil"), "cannot be read"),
        (leaf(shape=[2**40, 2**40]), "cannot be read"),
        (lambda header, _: header.update(leaves=None), "cannot be read"),
        (lambda header, _: header.update(tree={"eval": "1"}), "no part of a saved"),
        (lambda header, _: header.update(tree={"function": "fit.__globals__"}), "no part"),
        (lambda header, _: header.update(tree=json.loads("[" * 900 + "]" * 900)), "no part"),
    ):
        ak.save(path, ak.Gaussian(1.0))
        forged(path, change)
        assert_not_loaded(message, path)


def test_what_could_not_be_read_again_is_not_written(tmp_path):
    for tree, message in (
        ([np.zeros(1)] * 70_000, "70000 arrays"),
        (["word" * 1000] * 5000, "bytes about them"),
        (np.array(["a", "b"]), "only numbers are saved"),
    ):
        assert_raises(message, ak.save, tmp_path / "m", tree)
    assert not (tmp_path / "m").exists()


def test_a_link_is_followed_and_a_device_is_left_alone(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "m")
    ak.save(tmp_path / "link", ak.Gaussian(1.0))
    assert (tmp_path / "link").is_symlink()
    assert not (tmp_path / "m").is_symlink()
    assert float(ak.load(tmp_path / "m").lengthscale) == 1.0
    os.mkfifo(tmp_path / "pipe")  # as a device: no regular file
    with pytest.raises(OSError, match="no regular file"):
        ak.save(tmp_path / "pipe", ak.Gaussian(1.0))
    assert_not_loaded("no regular file", tmp_path / "pipe")
    assert_raises("the path of a file; got 'a", ak.load, "a\0b")
    (tmp_path / "m").write_bytes((tmp_path / "m").read_bytes().replace(b"\n", b"\r\n"))
    assert_not_loaded("line ends were changed", tmp_path / "m")


@pytest.mark.parametrize("size", [2**24 + 1, 60 * 2**20])
def test_a_header_of_many_megabytes_is_refused_before_it_is_read(tmp_path, size):
    path = tmp_path / "m"
    path.write_bytes(b"attnkernel 1\n" + b"0" * 64 + b" " + b" " * size + b"{}\n")
    tracemalloc.start()
    assert_not_loaded("it is not as it was written", path)
    assert tracemalloc.get_traced_memory()[1] < 50e6
    tracemalloc.stop()


def test_float64_is_refused_where_it_would_be_rounded(tmp_path):
    with jax.enable_x64(True):
        ak.save(tmp_path / "m", ak.Gaussian(jnp.asarray(0.1)))
    with jax.enable_x64(False):
        assert_not_loaded("jax_enable_x64", tmp_path / "m")


def test_a_class_of_a_script_or_a_notebook_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(Own, "__module__", "__main__")
    own = Own(jnp.asarray(2.0))
    ak.save(tmp_path / "own.ak", own)
    assert_equal(ak.load(tmp_path / "own.ak", classes=[Own]), own)
    assert_not_loaded("Own", tmp_path / "own.ak")
