"""The section `sweep` of a config: grids, listed points, random draws and rounds.

```yaml
sweep:
  grid:                     # every combination
    seed: 0..4
    hold_out: [[1], [10]]
  points:                   # each of these
    - {model.lengthscale: 0.3, training.optimizer: sgd}
    - {model.lengthscale: 1.0, training.optimizer: adam}
  random:                   # drawn, the same in every call
    number: 20
    seed: 0
    fields:
      training.learning_rate: {log_uniform: [1e-3, 1.0]}
  rounds:                   # successive halving
    budget: training.steps
    min_budget: 30
    max_budget: 270
    factor: 3
    metric: fits.0.leave_one_out
```

A member takes one of the grid, one of the points and one of the draws: 5 x 2 x 2 x 20 members here.
"""

import itertools
import json
import random
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from ..config import Column, FieldPath, Part, Seed, Source, build

MAX_MEMBERS = 100_000
_RANGE = re.compile(r"(-?\d{1,18})\.\.(-?\d{1,18})")
_WORD = re.compile(r"(?!(?:true|false|null)$)[A-Za-z][\w./-]*", re.IGNORECASE)


def range_of(text: str) -> list[int] | None:
    """The numbers of a range "0..9", both ends included; None for other text.

    **Raises:** `ValueError` for a range that descends or has more than `MAX_MEMBERS` numbers.
    """
    found = _RANGE.fullmatch(text.strip())
    if not found:
        return None
    first, last = map(int, found.groups())
    if not 0 <= last - first < MAX_MEMBERS:
        raise ValueError(f"expected a range upwards, of up to {MAX_MEMBERS} numbers")
    return list(range(first, last + 1))


def as_text(value: Any) -> str:
    """A value of a config as an override gives it: YAML in one line."""
    if isinstance(value, str) and _WORD.fullmatch(value):
        return value
    return json.dumps(value, ensure_ascii=False)


def _require_values(values: list[Any] | str) -> list[Any]:
    """Returns the values of a field of a grid; `ValueError` without any."""
    found = range_of(values) if isinstance(values, str) else values
    if not found:
        raise ValueError(f"expected a list of values, or a range such as 0..9; got {values!r}")
    return found


def _require_ascending(ends: list[Any]) -> list[Any]:
    """Returns [lowest, highest]; `ValueError` unless both are finite and the second is larger."""
    low, high = ends
    if not -float("inf") < low < high < float("inf"):
        raise ValueError(f"expected [lowest, highest]; got {ends}")
    return ends


_TWO = Field(min_length=2, max_length=2)
_ASCENDING = AfterValidator(_require_ascending)
Ends = Annotated[list[int | float], _TWO, _ASCENDING]
WholeEnds = Annotated[list[int], _TWO, _ASCENDING]
Values = Annotated[list[Any] | str, AfterValidator(_require_values)]


class Draw(Part):
    """The distribution of a field."""

    uniform: Ends | None = None
    log_uniform: Ends | None = None
    integers: WholeEnds | None = None
    choice: Annotated[list[Any], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _require_one(self) -> "Draw":
        """Raises `ValueError` unless one distribution is given, and a logarithm exists."""
        names = list(type(self).model_fields)
        given = [name for name in names if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"expected one of {', '.join(names)}; got {given or 'none'}")
        if self.log_uniform is not None and self.log_uniform[0] <= 0:
            raise ValueError(f"log_uniform: expected positive numbers; got {self.log_uniform}")
        return self

    def draws(self, field: str, number: int, seed: int) -> list[Any]:
        """The values of a field. More draws, or draws of other fields, leave the first as they are;
        so does another version of Python or NumPy.
        """
        uniform = random.Random(f"{seed} {field}")
        return [self._quantile(uniform.random()) for _ in range(number)]

    def _quantile(self, u: float) -> Any:
        """Returns the quantile of a u in [0, 1); numbers with 6 significant digits."""
        if self.choice is not None:
            return self.choice[int(u * len(self.choice))]
        if self.integers is not None:
            low, high = self.integers
            return low + int(u * (high - low + 1))
        if self.log_uniform is not None:
            low, high = self.log_uniform
            value = low * (high / low) ** u
        else:
            low, high = self.uniform or (0.0, 1.0)
            value = low + u * (high - low)
        return min(max(float(f"{value:.6g}"), low), high)


class RandomDraws(Part):
    """Points that are drawn, independently in each field."""

    number: int = Field(ge=1, le=MAX_MEMBERS)
    seed: Seed = 0
    fields: dict[Column, Draw] = Field(min_length=1)


class Rounds(Part):
    r"""Successive halving: all candidates with a small budget, the best 1/η of them with η times
    as much, and so on (Jamieson and Talwalkar, 2016).

    $$ b_i = R\,\eta^{\,i - s}, \qquad n_i = \max(1, \lfloor n\,\eta^{-i} \rfloor), \qquad
       i = 0 \dots s = \lfloor \log_\eta (R / r) \rfloor $$

    for n candidates and budgets from r to R: one bracket of Hyperband (Li et al., 2018).
    """

    budget: Column = Field(description="the field that grows, such as training.steps")
    min_budget: int = Field(ge=1)
    max_budget: int = Field(ge=1)
    factor: int = Field(default=3, ge=2, description="η")
    metric: Column = Field(description="a number of summary.json, as fits.0.loss")
    goal: Literal["minimise", "maximise"] = "minimise"

    @model_validator(mode="after")
    def _require_order(self) -> "Rounds":
        """Raises `ValueError` if the largest budget is below the smallest."""
        if self.max_budget < self.min_budget:
            raise ValueError(f"max_budget {self.max_budget} is below min_budget {self.min_budget}")
        return self

    def schedule(self, candidates: int) -> list[tuple[int, int]]:
        """The budget and the number of candidates of each round."""
        last, eta = 0, self.factor
        while self.min_budget * eta ** (last + 1) <= self.max_budget:
            last += 1
        return [
            (round(self.max_budget / eta ** (last - i)), max(1, candidates // eta**i))
            for i in range(last + 1)
        ]


class Sweep(Part):
    """The section `sweep`."""

    grid: dict[Column, Values] = {}
    points: list[Annotated[dict[Column, Any], Field(min_length=1)]] = []
    random: RandomDraws | None = None
    rounds: Rounds | None = None

    @model_validator(mode="after")
    def _require_one_place_of_a_field(self) -> "Sweep":
        """Raises `ValueError` for a field that two parts of the section set."""
        places = [
            ("grid", self.grid),
            ("points", dict.fromkeys(name for point in self.points for name in point)),
            ("random", self.random.fields if self.random else {}),
            ("rounds", {self.rounds.budget: None} if self.rounds else {}),
        ]
        for (one, first), (other, second) in itertools.combinations(places, 2):
            if both := [name for name in first if name in second]:
                raise ValueError(f"{both[0]} is set by {one} and by {other}: leave one out")
        return self

    def parts(self) -> Iterator[list[dict[FieldPath, tuple[str, Any]]]]:
        """The choices of each part, of which a member takes one: by the place in the section, the
        field and its value.
        """
        for field, values in self.grid.items():
            yield [{("grid", field): (field, value)} for value in values]
        if self.points:
            yield [
                {("points", i, field): (field, value) for field, value in point.items()}
                for i, point in enumerate(self.points)
            ]
        if self.random:
            number, seed, fields = self.random.number, self.random.seed, self.random.fields
            drawn = {field: draw.draws(field, number, seed) for field, draw in fields.items()}
            yield [
                {("random", "fields", field): (field, drawn[field][i]) for field in drawn}
                for i in range(number)
            ]


class _Config(Part):
    """The section at its place in the file."""

    sweep: Sweep


def take_section(source: Source) -> Sweep | None:
    """Removes the section `sweep` from a config; returns it, or None if the config has none.

    The source still knows the lines of the section, for errors.

    **Raises:** `ConfigError`.
    """
    if "sweep" not in source.values:
        return None
    section = {"sweep": source.values.pop("sweep")}
    return build(Source(section, source.locations), _Config).sweep
