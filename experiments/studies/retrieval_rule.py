"""Softmax as a retrieval rule: each rule is the maximum of an objective on the simplex."""

import itertools
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray
from pydantic import Field, model_validator

import attnkernel as ak

from ..config import Positive
from ..reports import save_with_legend, subplots
from ..runs import NO_MONITOR, Monitor, Run
from .study import Keys, Study

RULES: dict[str, ak.rules.Rule] = {
    "softmax": ak.Softmax(),
    "entmax 1.25": ak.Entmax(ak.fixed(1.25)),
    "entmax 1.5": ak.Entmax(ak.fixed(1.5)),
    "sparsemax": ak.Entmax(ak.fixed(2.0)),
    "uniform": ak.rules.Uniform(),
}
COMPACT = {1: ak.Epanechnikov, 2: ak.kernels.Biweight, 3: ak.kernels.Triweight}

# deviations by rule and by order of entmax; and the softmax against the temperature
Results = tuple[dict[str, dict[str, float]], dict[int, float], dict[str, Any]]


class RetrievalRule(Study):
    """Rules against a numerical optimiser, entmax against compact kernels, and the regimes of τ."""

    study: Literal["retrieval_rule"]
    scores: list[float] = Field(min_length=2, max_length=12)
    prior: list[Positive] = Field(min_length=2, max_length=12)
    lowest: Positive = 0.05
    highest: Positive = 10.0
    points: int = Field(default=121, ge=2, le=1000)
    trials: int = Field(default=20, ge=1, le=200, description="random problems for the optimiser")

    @model_validator(mode="after")
    def _require_one_prior_per_score(self) -> "RetrievalRule":
        """Raises `ValueError` unless there is one prior per score."""
        if len(self.scores) != len(self.prior):
            raise ValueError(
                f"expected as many priors as scores; got {len(self.prior)} and {len(self.scores)}"
            )
        return self

    def compute(self, key: PRNGKeyArray, monitor: Monitor = NO_MONITOR) -> Results:
        keys = Keys(key)
        with monitor.timed("optimiser"):
            optimised = self.against_an_optimiser(keys.next())
        return optimised, against_compact_kernels(keys.next()), self.regimes()

    def report(self, results: Results, run: Run) -> None:
        optimised, identity, regimes = results
        weights = {name: weigh(rule, jnp.asarray(self.scores)) for name, rule in RULES.items()}
        draw_rules(run, self.scores, weights)
        draw_regimes(run, regimes)
        run.table_of(
            f"Largest deviations from a numerical optimiser on the simplex, {self.trials} problems "
            f"of {len(self.scores)} scores",
            [{"rule": name, **found} for name, found in optimised.items()],
        )
        run.table_of(
            "entmax of order 1 + 1/n of a Gaussian = compact kernel of adaptive width",
            [{"n": n, "kernel": COMPACT[n].__name__, "weights": identity[n]} for n in identity],
        )
        found = {"optimiser": optimised, "compact_kernels": identity}
        run.summary(found | {"weights": weights, "regimes": regimes})

    def against_an_optimiser(self, key: Array) -> dict[str, dict[str, float]]:
        """Largest deviations of weights and objective, without and with a prior."""
        found, problems = {}, jax.random.normal(key, (self.trials, 2, len(self.scores)))
        for (name, rule), end in itertools.product(RULES.items(), ("", ", with a prior")):
            gaps, solve = [], optimiser(rule)
            for scores, log_prior in problems:
                prior = log_prior if end else None
                ours, theirs = weigh(rule, scores, prior), solve(scores, prior)
                first, second = (rule.objective(a, scores, prior) for a in (ours, theirs))
                gaps.append((jnp.max(jnp.abs(ours - theirs)), jnp.abs(first - second)))
            found[name + end] = dict(zip(("weights", "objective"), np.max(gaps, 0), strict=True))
        return found

    def regimes(self) -> dict[str, Any]:
        """The softmax and its objective against τ, with and without the prior."""
        scores, log_prior = jnp.asarray(self.scores), jnp.log(jnp.asarray(self.prior))
        log_prior = log_prior - jax.nn.logsumexp(log_prior)
        temperatures = jnp.geomspace(self.lowest, self.highest, self.points)

        def at(temperature: Array) -> dict[str, Array]:
            return {
                f"{name}_{part}": value
                for name, prior in (("entropy", None), ("prior", log_prior))
                for part, value in optimum(ak.Softmax(temperature), scores, prior).items()
            }

        found = jax.lax.map(at, temperatures)
        return {"temperature": temperatures, **found}


def weigh(rule: ak.rules.Rule, scores: Array, log_prior: Array | None = None) -> Array:
    """The weights of one query with these scores: its product with keys of one column."""
    prior = None if log_prior is None else ak.priors.KeyWeights(log_prior)
    one, keys = jnp.ones((1, 1)), scores[:, None]
    return ak.attention_weights(one, keys, kernel=ak.DotProduct(), prior=prior, rule=rule)[0]


def optimum(rule: ak.rules.Rule, scores: Array, log_prior: Array | None = None) -> dict[str, Array]:
    """The weights, Σ a s, the other term of the objective, and the objective."""
    a = weigh(rule, scores, log_prior)
    match, objective = jnp.sum(a * scores), rule.objective(a, scores, log_prior)
    return {"weights": a, "match": match, "term": objective - match, "objective": objective}


def optimiser(rule: ak.rules.Rule) -> Callable[[Array, Array | None], Array]:
    """The maximum of the rule's objective on the simplex, by sequential quadratic programming."""
    from scipy.optimize import LinearConstraint, minimize  # noqa: PLC0415  0.3 s of each command

    def loss(a: Array, scores: Array, log_prior: Array | None) -> Array:
        return -rule.objective(a, scores, log_prior)

    value, slope = jax.jit(loss), jax.jit(jax.grad(loss))

    def solve(scores: Array, log_prior: Array | None) -> Array:
        ones = np.ones(scores.shape[0])
        simplex: dict[str, Any] = {"bounds": [(1e-15, 1.0)] * len(ones)}
        simplex["constraints"] = LinearConstraint(ones, 1.0, 1.0)
        how = {"jac": slope, "method": "SLSQP", "options": {"ftol": 1e-16, "maxiter": 1000}}
        found = minimize(value, ones / len(ones), args=(scores, log_prior), **simplex, **how)
        return jnp.asarray(found.x)

    return solve


def against_compact_kernels(key: Array) -> dict[int, float]:
    """Largest deviation of entmax of order 1 + 1/n from a compact kernel of adaptive width."""
    of_q, of_k = jax.random.split(key)
    q, k = jax.random.normal(of_q, (50, 2)), jax.random.normal(of_k, (200, 2))
    found = {}
    for n, kernel in COMPACT.items():
        rule = ak.Entmax(ak.fixed(1.0 + 1.0 / n))
        ours = ak.attention_weights(q, k, kernel=ak.Gaussian(1.0), rule=rule)
        _, level = ak.attend(q, k, k, kernel=ak.Gaussian(1.0), rule=rule, return_log_mass=True)

        def of_query(point: Array, width: Array, kernel: Any = kernel) -> Array:
            return ak.attention_weights(point[None], k, kernel=kernel(width))[0]

        compact = jax.vmap(of_query)(q, jnp.sqrt(2.0 * (n - level)))
        found[n] = float(jnp.max(jnp.abs(ours - compact)))
    return found


def draw_rules(run: Run, scores: list[float], weights: dict[str, Array]) -> None:
    figure, axes = subplots(1, len(weights), sharey=True, figsize=(9.0, 2.6))
    order = np.argsort(scores)[::-1]
    labels = [f"{scores[i]:g}" for i in order]
    for ax, (name, a) in zip(axes, weights.items(), strict=True):
        a = np.asarray(a)[order]
        ax.bar(range(len(a)), a, color=ak.plot.BLUE)
        for place, weight in enumerate(a):
            if weight == 0:
                ax.plot([place], [0.0], "x", color=ak.plot.ORANGE, clip_on=False)
        ax.set_title(f"{name}: {np.sum(a > 0)} keys")
        ax.set_xticks(range(len(a)), labels)
        ax.set_xlabel("score of the key")
    axes[0].set_ylabel("weight (cross: exactly 0)")
    run.figure("rules", figure)


def draw_regimes(run: Run, regimes: dict[str, Any]) -> None:
    figure, axes = subplots(2, 2, sharex=True, figsize=(9.0, 4.8))
    tau = np.asarray(regimes["temperature"])
    terms = {"entropy": ("+ τ H(a)", "τ H(a)"), "prior": ("− τ KL(a‖r)", "−τ KL(a‖r)")}
    for (top, bottom), (name, (added, term)) in zip(axes.T, terms.items(), strict=True):
        weights = np.asarray(regimes[f"{name}_weights"])
        for i, a in enumerate(weights.T):
            top.plot(tau, a, ("-", "--", ":", "-.")[i % 4], label=f"key {i + 1}")
        sharp = tau[np.max(weights, axis=1) > 0.5]
        half = f"a weight > ½ below τ = {sharp[-1]:.2g}" if len(sharp) else "no weight > ½"
        top.set(title=f"maximum of Σ a s {added}: {half}", xscale="log", ylim=(0.0, 1.0))
        bottom.plot(tau, regimes[f"{name}_match"], "--", color=ak.plot.BLUE, label="Σ a s")
        bottom.plot(tau, regimes[f"{name}_term"], ":", color=ak.plot.PURPLE, label=term)
        bottom.plot(tau, regimes[f"{name}_objective"], color=ak.plot.ink(), label="objective")
        bottom.set(xlabel="temperature τ")
        bottom.legend(loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=3)
    axes[0, 0].set_ylabel("weight")
    axes[1, 0].set_ylabel("contribution to the objective")
    save_with_legend(run, "regimes", figure, list(axes[0]))
