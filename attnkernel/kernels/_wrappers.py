"""Wrappers: products, some columns, projections, rescaled points and capped scores."""

import functools
import operator
from collections.abc import Callable, Hashable, Sequence
from typing import Any, ClassVar, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from .._core.arrays import AnyArray, namespace_of
from .._core.parameters import Number, Parameter, natural, positive
from .._core.validation import as_integer_tuple, require_function, require_instance
from ._base import (
    BatchOfKeys,
    BatchOfQueries,
    Embedded,
    Kernel,
    Keys,
    PointBoxes,
    Queries,
    Scores,
    Wrapper,
    category_counts,
    periods,
)

Tree = TypeVar("Tree")
Projection = Callable[[Float[Array, " dim_in"]], Float[Array, " dim_out"]]


class Product(Wrapper):
    r"""$\log K(q, k) = \log K_1(q, k) + \log K_2(q, k)$, written `first * second`.

    Either may be an `ak.PerHead` of kernels.

    ```python
    >>> ak.Gaussian(0.3).on(0) * ak.kernels.LiRacine(0.2).on(1)
    Product(
      first=OnColumns(kernel=Gaussian(lengthscale=0.3), columns=(0,)),
      second=OnColumns(kernel=LiRacine(bandwidth=0.2), columns=(1,))
    )

    ```
    """

    first: Any
    second: Any

    def __check_init__(self):
        for name in ("first", "second"):
            factor = getattr(self, name)
            require_instance(name, getattr(factor, "stack", factor), Kernel, "ak.Gaussian(0.3)")

    def log_pair(self, q: Float[Array, " dim"], k: Float[Array, " dim"]) -> Float[Array, ""]:
        return self.first.log_pair(q, k) + self.second.log_pair(q, k)

    def score_upper_bound(self, boxes: PointBoxes) -> Float[Array, ""]:
        first, second = self.first.score_upper_bound(boxes), self.second.score_upper_bound(boxes)
        # +inf (no bound) plus -inf (no weight) would be NaN: such a pair has no weight
        none = jnp.isneginf(first) | jnp.isneginf(second)
        return jnp.where(none, -jnp.inf, first + second)

    def precomputed(self, q: BatchOfQueries, k: BatchOfKeys) -> tuple[Kernel, Array, Array]:
        """Returns the product of the precomputed factors, and points that join theirs column by
        column. Each factor takes its own columns of these. If no factor becomes simpler: this
        kernel, q and k."""
        factors = (self.first, self.second)
        simpler = [factor.precomputed(q, k) for factor in factors]
        if all(
            found[0] is (factor.kernel if isinstance(factor, OnColumns) else factor)
            for factor, found in zip(factors, simpler, strict=True)
        ):
            return self, q, k
        (first, q_first, k_first), (second, q_second, k_second) = simpler
        dim, more = q_first.shape[-1], q_second.shape[-1]
        joined = Product(OnColumns(first, range(dim)), OnColumns(second, range(dim, dim + more)))
        return (
            joined,
            jnp.concatenate([q_first, q_second], axis=-1),
            jnp.concatenate([k_first, k_second], axis=-1),
        )

    def pairwise(self, q: Queries, k: Keys) -> Scores:
        return self.first.pairwise(q, k) + self.second.pairwise(q, k)

    def log_normaliser(self, dim: int) -> Float[Array, ""]:
        """The sum of the log-normalisers of all factors; `ValueError` unless each column belongs to
        exactly one factor, and the integral of each factor is known."""
        factors, nodes = [], [self.first, self.second]
        while nodes:
            node = nodes.pop()
            nodes += [node.first, node.second] if isinstance(node, Product) else []
            factors += [] if isinstance(node, Product) else [node]
        columns = [f.columns if isinstance(f, OnColumns) else tuple(range(dim)) for f in factors]
        if sorted(sum(columns, ())) != list(range(dim)):
            raise ValueError(
                f"The integral of a product is known where each column is of one factor; of {dim} "
                f"columns, counted from 0, the factors take {', '.join(map(str, columns))}."
            )
        kernels = [f.kernel if isinstance(f, OnColumns) else f for f in factors]
        volumes = [f.log_normaliser(len(c)) for f, c in zip(kernels, columns, strict=True)]
        return functools.reduce(operator.add, volumes)


class _OfOtherPoints(Embedded, Wrapper):
    """A kernel of transformed points: `points_of_parts` transforms queries and keys alike."""

    kernel: eqx.AbstractVar[Kernel]

    def embed(self, q: BatchOfQueries, k: BatchOfKeys) -> tuple[Kernel, Array, Array]:
        return self.kernel, self.points_of_parts(q), self.points_of_parts(k)

    def score_upper_bound(self, boxes: PointBoxes) -> Float[Array, ""]:
        return self.kernel.score_upper_bound(PointBoxes(*map(self.points_of_parts, boxes)))


class OnColumns(_OfOtherPoints):
    r"""A kernel of some columns of the points: mixed data are a product of these.

    $$ \log K(q, k) = \log K'(q_C, k_C), \qquad q, k \in \mathbb{R}^d,\
       C \subseteq \{0, \dots, d - 1\} $$

    **Arguments:**

    - `kernel`: K′, of points of as many dimensions as there are columns.
    - `columns`: C, counted from 0, in the order in which K′ takes them; or one number. Or names
      of the columns of a frame of pandas, which `fit` replaces by their numbers.

    `kernel.on(0, 2)` is `OnColumns(kernel, (0, 2))`.

    **Raises:** `ValueError` if a column is neither an integer from 0 nor a name, comes twice, is
    not among the columns of the points, or has a name but the points are no frame.

    ```python
    >>> import attnkernel as ak
    >>> kernel = ak.Gaussian(2.0).on("temperature") * ak.kernels.LiRacine(0.3).on("month")

    ```
    """

    kernel: Kernel
    columns: tuple[int, ...] | tuple[str, ...] = eqx.field(static=True)

    def __init__(
        self, kernel: Kernel, columns: int | str | Sequence[int] | Sequence[str] | np.ndarray
    ):
        require_instance("kernel", kernel, Kernel, "ak.Gaussian(0.3)")
        self.kernel = kernel
        listed = [columns] if isinstance(columns, str) else columns
        if isinstance(listed, Sequence) and listed and all(isinstance(c, str) for c in listed):
            self.columns = tuple(str(c) for c in listed)
        else:
            self.columns = as_integer_tuple("columns", listed, 0)
        if len(set(self.columns)) < len(self.columns):
            raise ValueError(f"Each column can be taken once; got {self.columns}.")

    def log_pair(self, q: Float[Array, " dim"], k: Float[Array, " dim"]) -> Float[Array, ""]:
        return self.kernel.log_pair(self.points_of_parts(q), self.points_of_parts(k))

    def check(self, dim_q: int, dim_k: int) -> None:
        Kernel.check(self, dim_q, dim_k)
        self._require_columns(dim_q)
        Wrapper.check(self, dim_q, dim_k)

    def log_normaliser(self, dim: int) -> Float[Array, ""]:
        """Returns the log-normaliser of K′; `ValueError` unless K′ takes all `dim` columns, by
        number, and its integral is known."""
        self._require_columns(dim)
        if len(self.columns) < dim:
            raise ValueError(
                f"A kernel on the columns {', '.join(map(str, self.columns))} of {dim}, counted "
                f"from 0, is constant along the others, and its integral infinite: multiply it by "
                f"kernels on these."
            )
        return self.kernel.log_normaliser(dim)

    def category_counts(self, dim: int) -> dict[int, int | None]:
        self._require_columns(dim)
        counts = category_counts(self.kernel, len(self.columns))
        return {int(self.columns[c]): count for c, count in counts.items()}

    def periods(self, dim: int) -> dict[int, ArrayLike | None]:
        """The columns of this kernel, by their number in the whole points, each with its period.
        None: a line."""
        found = periods(self.kernel, len(self.columns))
        return {int(self.columns[c]): period for c, period in found.items()}

    def dim_of_parts(self, dim: int) -> int:
        return len(self.columns)

    def points_of_parts(self, x: Float[AnyArray, "*rows dim"]) -> Float[AnyArray, "*rows dim_part"]:
        """The columns of the points x that this kernel takes, in its order."""
        self._require_columns(x.shape[-1])
        # slices and no gather: these melt into the loops that read them
        parts = [x[..., c : c + 1] for c in map(int, self.columns)]
        return namespace_of(x).concatenate(parts, axis=-1)

    def numbered(self, names: Sequence[Hashable]) -> "OnColumns":
        """The kernel with the numbers of its columns in place of their names.

        Kernels of columns within K′ are numbered too. `names`: those of all columns of x;
        `ValueError` unless each name of the kernel is there exactly once and each number is below
        their count.
        """
        unknown = [c for c in self.columns if isinstance(c, str) and names.count(c) != 1]
        if unknown:
            raise ValueError(
                f"A kernel on the column {unknown[0]!r} needs exactly one column of that name; x "
                f"has {list(names)}."
            )
        columns = tuple(names.index(c) if isinstance(c, str) else c for c in self.columns)
        OnColumns(self.kernel, columns)._require_columns(len(names))
        return OnColumns(number_columns(self.kernel, [names[c] for c in columns]), columns)

    def _require_columns(self, dim: int) -> None:
        """Raises `ValueError` unless all columns of the kernel are numbers below `dim`, the number
        of columns of the points; a fit to a frame replaces names by numbers."""
        named = [c for c in self.columns if isinstance(c, str)]
        if named:
            raise ValueError(
                f"A kernel on the column {named[0]!r} needs a fit to a frame of pandas, which has "
                f"names: ak.fit(model, frame, y). With arrays, count the columns from 0."
            )
        if max(map(int, self.columns)) >= dim:
            raise ValueError(
                f"A kernel on the columns {', '.join(map(str, self.columns))}, counted from 0, "
                f"needs points of at least {max(map(int, self.columns)) + 1} dimensions; got {dim}."
            )


def number_columns(tree: Tree, names: Sequence[Hashable]) -> Tree:
    """Returns the tree with the numbers of columns in place of their names in every `OnColumns`.

    `names`: those of all columns of x. `ValueError` as of `OnColumns.numbered`.
    """

    def number(node: Any) -> Any:
        return node.numbered(names) if isinstance(node, OnColumns) else node

    return jax.tree.map(number, tree, is_leaf=lambda node: isinstance(node, OnColumns))


class Rescaled(_OfOtherPoints):
    r"""A kernel of points divided by a factor: $\log K(q, k) = \log K'(q / f,\, k / f)$.

    It is the `rescaled` of a kernel that has no lengthscale of its own to multiply.

    **Arguments:** `kernel`: K′. `factor`: f > 0, no unit.

    **Raises:** `ValueError` if the factor is not positive.

    ```python
    >>> x = jnp.array([[2.0], [4.0]])
    >>> ak.kernels.Rescaled(ak.DotProduct(ak.fixed(1.0)), 2.0).pairwise(x, x)
    Array([[1., 2.],
           [2., 4.]], dtype=float32)

    ```
    """

    kernel: Kernel
    factor: ArrayLike

    def __check_init__(self):
        require_instance("kernel", self.kernel, Kernel, "ak.Gaussian(0.3)")
        positive("factor", self.factor, "Try 2.")
        if np.ndim(self.factor):
            raise ValueError(f"factor must be one number; got shape {np.shape(self.factor)}.")

    def points_of_parts(self, x: Float[AnyArray, "..."]) -> Float[AnyArray, "..."]:
        return x / self.factor

    def periods(self, dim: int) -> dict[int, ArrayLike | None]:
        """The columns of the kernel, each with its period times the factor. None: a line."""
        found = periods(self.kernel, dim)
        return {c: None if p is None else p * self.factor for c, p in found.items()}


def rescaled(kernel: Kernel, factor: ArrayLike) -> Kernel:
    r"""Returns the kernel with its lengthscales times a factor f: $K(q / f,\, k / f)$.

    Wrappers pass it on to their parts. A kernel without a parameter `lengthscale` becomes
    `Rescaled`; one that says `has_length = False`, such as `DotProduct`, stays as it is.

    ```python
    >>> ak.kernels.rescaled(ak.Gaussian(0.5), 3.0)
    Gaussian(lengthscale=1.5)

    ```
    """
    if isinstance(kernel, Wrapper):
        parts = {name: rescaled(part, factor) for name, part in kernel.parts().items()}
        return kernel.with_parts(parts)
    if (parameter := getattr(kernel, "lengthscale_parameter", None)) is not None:
        longer = parameter.times(factor)
        return eqx.tree_at(lambda kernel: kernel.lengthscale_parameter, kernel, longer)
    return Rescaled(kernel, factor) if kernel.has_length else kernel


class Projected(Embedded, Wrapper):
    r"""Any kernel of projected points: queries and keys each by a function of their own.

    $$ \log K(q, k) = \log K'(W_q q,\, W_k k), \qquad q \in \mathbb{R}^{d_q},\
       k \in \mathbb{R}^{d_k},\ W_q q, W_k k \in \mathbb{R}^d $$

    With `DotProduct` it is the score of a transformer's head; with `Gaussian`, attention by
    distance; with `AdditiveScore`, that of Bahdanau et al. Each point is projected once.

    **Arguments:**

    - `kernel`: K′, of the projected points.
    - `query_proj`, `key_proj`: functions of one point, such as `eqx.nn.Linear`, linear or not.

    **Raises:** `ValueError` where the two give points that K′ cannot compare.

    ```python
    >>> key_q, key_k = jax.random.split(jax.random.PRNGKey(0))
    >>> query_proj = eqx.nn.Linear(3, 2, key=key_q)
    >>> key_proj = eqx.nn.Linear(4, 2, key=key_k)
    >>> kernel = ak.kernels.Projected(ak.DotProduct(), query_proj, key_proj)
    >>> ak.attention_weights(jnp.ones((5, 3)), jnp.ones((6, 4)), kernel=kernel).shape
    (5, 6)

    ```
    """

    # a projection of each pair costs more than one of each point
    is_cheap: ClassVar[bool] = False  # type: ignore[override]

    kernel: Kernel
    query_proj: Projection
    key_proj: Projection

    def __check_init__(self):
        require_instance("kernel", self.kernel, Kernel, "ak.Gaussian(0.3)")
        require_function("query_proj", self.query_proj)
        require_function("key_proj", self.key_proj)

    def check(self, dim_q: int, dim_k: int) -> None:
        sizes = []
        for name, projection, dim in (
            ("query_proj", self.query_proj, dim_q),
            ("key_proj", self.key_proj, dim_k),
        ):
            point = jax.ShapeDtypeStruct((dim,), jnp.result_type(float))
            try:
                out = eqx.filter_eval_shape(projection, point)
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"{name} must take one point, shape ({dim},), the size of what it projects "
                    f"here; it raised: {error}"
                ) from None
            if getattr(out, "ndim", None) != 1:
                raise ValueError(f"{name} must give one point, shape (dim_out,); got {out}.")
            sizes.append(out.shape[0])
        self.kernel.check(*sizes)

    def embed(self, q: BatchOfQueries, k: BatchOfKeys) -> tuple[Kernel, Array, Array]:
        return self.kernel, _project_points(self.query_proj, q), _project_points(self.key_proj, k)

    def points_of_parts(self, x: Float[AnyArray, "n dim"]) -> Float[AnyArray, "n dim_part"]:
        """The inputs projected as keys, by `key_proj` at its current parameters."""
        return _project_points(self.key_proj, x)

    def category_counts(self, dim: int) -> dict[int, int | None]:
        """Returns an empty dictionary: a projection mixes the columns, and none holds codes."""
        return {}


def _project_points(projection: Projection, x: Array) -> Array:
    """Returns the projection of each point, the last axis of x, in the dtype of x."""
    return jnp.vectorize(projection, signature="(d)->(e)")(x).astype(x.dtype)


class SoftCapped(Wrapper):
    r"""Any kernel whose score is kept within ±c by a smooth cap.

    $$ \log K(q, k) = c \tanh\!\big(\log K'(q, k) / c\big) $$

    A pair without weight, $\log K' = -\infty$, stays without.

    **Arguments:**

    - `kernel`: K′.
    - `cap`: c > 0, in the units of a score, trained; `ak.fixed(50.0)` holds it.

    **Raises:** `ValueError` if the cap is not positive.

    **Source:** Gemma team, *Gemma 2* (2024).

    ```python
    >>> q, k = jnp.array([[10.0]]), jnp.array([[1.0], [30.0]])
    >>> np.asarray(ak.kernels.SoftCapped(ak.DotProduct(), 50.0).pairwise(q, k)).round(2)
    array([[ 9.87, 50.  ]], dtype=float32)

    ```
    """

    # a hyperbolic tangent of each pair costs more than storing it
    is_cheap: ClassVar[bool] = False  # type: ignore[override]

    kernel: Kernel
    cap_parameter: Parameter

    def __init__(self, kernel: Kernel, cap: Number):
        require_instance("kernel", kernel, Kernel, "ak.DotProduct()")
        self.kernel = kernel
        self.cap_parameter = positive("cap", cap, "It is in the units of a score: try 50.")

    cap = natural("cap")

    def precomputed(self, q: BatchOfQueries, k: BatchOfKeys) -> tuple[Kernel, Array, Array]:
        kernel, q, k = self.kernel.precomputed(q, k)
        return self.with_parts({"kernel": kernel}), q, k

    def log_pair(self, q: Float[Array, " dim_q"], k: Float[Array, " dim_k"]) -> Float[Array, ""]:
        return self._cap_scores(self.kernel.log_pair(q, k))

    def pairwise(self, q: Queries, k: Keys) -> Scores:
        return self._cap_scores(self.kernel.pairwise(q, k))

    def score_upper_bound(self, boxes: PointBoxes) -> Float[Array, ""]:
        bound = self.kernel.score_upper_bound(boxes)
        return jnp.where(jnp.isneginf(bound), -jnp.inf, self.cap * jnp.tanh(bound / self.cap))

    def _cap_scores(self, scores: Float[Array, "..."]) -> Float[Array, "..."]:
        """Returns c tanh(s / c) of each score s, with c the cap; −∞ stays −∞."""
        some = ~jnp.isneginf(scores)
        capped = self.cap * jnp.tanh(jnp.where(some, scores, 0.0) / self.cap)
        return jnp.where(some, capped, -jnp.inf)
