"""The precision of products: of queries and keys by the kernel, of values by the method."""

import jax
import jax.numpy as jnp
import pytest
from jax.extend.core import jaxprs_in_params

import attnkernel as ak
from attnkernel.methods import Blockwise, Dense

X = jnp.ones((6, 3))


def precisions(kernel, method, prior=None):
    """Those of all products in the value and its gradient, as JAX's programs name them."""

    def total(x):
        out = ak.attend(x, x, x, kernel=kernel, method=method, prior=prior)
        return jnp.sum(out**2)

    found = set()

    def walk(jaxpr):
        for equation in jaxpr.eqns:
            if equation.primitive.name == "dot_general":
                found.add(equation.params["precision"])
            for inner in jaxprs_in_params(equation.params):
                walk(inner)

    walk(jax.make_jaxpr(jax.value_and_grad(total))(X).jaxpr)
    return {pair[0].name.lower() for pair in found if pair is not None}


METHODS = {
    "dense": (Dense, None),
    "blockwise": (lambda **options: Blockwise(2, 3, **options), ak.Causal()),
    "blocks of queries": (Blockwise, None),
}


@pytest.mark.parametrize("name", METHODS)
def test_each_product_has_its_precision(name):
    make, prior = METHODS[name]
    assert precisions(ak.DotProduct(), make(), prior) == {"highest"}
    chosen = make(precision=jax.lax.Precision.DEFAULT)
    assert precisions(ak.DotProduct(precision="high"), chosen, prior) == {"default", "high"}
    assert precisions(ak.DotProduct(), chosen, prior) == {"default", "highest"}


def test_what_is_shown_and_refused():
    assert repr(Dense()) == "Dense()"
    assert repr(Blockwise(8, precision="default")) == "Blockwise(block_q=8, precision='default')"
    for make in (Dense, Blockwise, ak.DotProduct):
        with pytest.raises(ValueError, match=r"precision must be .*'highest'; got 'lowest'"):
            make(precision="lowest")
