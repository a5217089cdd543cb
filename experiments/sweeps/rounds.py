"""Successive halving: rounds of a sweep, each with fewer candidates and a larger budget.

A candidate is a combination of values without its seeds; its score is the mean of the metric over
them. One of which a member failed comes last. Each member of a round is a run of its own, from the
start, whose config has the budget of that round: it is stored, and computed once, as any other.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..config import nearest
from ..runs import OutputError, numbers_of
from .members import Combination, Member, Plan, words
from .section import Rounds

Candidate = tuple[tuple[str, str], ...]  # fields and values, but seed and budget
_MAX_NAMES = 20


def halve(
    plan: Plan, rounds: Rounds, compute: Callable[[Sequence[Member]], Mapping[str, Any]]
) -> tuple[list[Member], list[dict[str, Any]]]:
    """Runs the rounds of a plan; returns the members of all, and a record of each round.

    `compute`: computes the members that are missing, and returns the state and the summary of all
    that are known, by ID.

    **Raises:** `OutputError` if no candidate of a round has the metric.
    """
    left: dict[Candidate, list[Combination]] = {}
    for combination in plan.combinations:
        asked = {field: setting.text for field, setting in combination.items()}
        left.setdefault(_candidate_of(asked, rounds), []).append(combination)
    members, records = [], []
    schedule = rounds.schedule(len(left))
    for number, (budget, _) in enumerate(schedule, 1):
        own = plan.members([one for several in left.values() for one in several], budget)
        found = compute(own)
        scores = _scores(own, rounds, found, plan.source.location(("sweep", "rounds", "metric")))
        sign = 1.0 if rounds.goal == "minimise" else -1.0
        ranked = sorted(scores, key=lambda candidate: sign * scores[candidate])
        keep = schedule[number][1] if number < len(schedule) else 1
        finite = [candidate for candidate in ranked if math.isfinite(scores[candidate])][:keep]
        members += own
        records.append(
            {
                "budget": {rounds.budget: budget},
                "candidates": len(scores),
                "kept": [
                    {"asked": dict(candidate), rounds.metric: scores[candidate]}
                    for candidate in finite
                ],
            }
        )
        left = {candidate: left[candidate] for candidate in finite}
    return members, records


def _candidate_of(asked: Mapping[str, str], rounds: Rounds) -> Candidate:
    """Returns the fields and values of a member without its seed and its budget."""
    return tuple((k, v) for k, v in asked.items() if k not in ("seed", rounds.budget))


def _scores(
    members: Sequence[Member], rounds: Rounds, found: Mapping[str, Any], place: str
) -> dict[Candidate, float]:
    """Returns the mean of the metric over the members of each candidate; if one of them has none,
    infinity with the sign of the worst. `place`: where the metric is written, for the error.
    """
    worst = math.inf if rounds.goal == "minimise" else -math.inf
    values: dict[Candidate, list[float]] = {}
    names: dict[str, None] = {}
    for member in members:
        row = found.get(member.id, {})
        numbers = numbers_of(row.get("summary") or {}) if row.get("state") == "done" else {}
        names |= dict.fromkeys(numbers)
        value = numbers.get(rounds.metric, worst)
        values.setdefault(_candidate_of(member.asked, rounds), []).append(value)
    scores = {candidate: float(np.mean(own)) for candidate, own in values.items()}
    if not any(map(math.isfinite, scores.values())):
        if names and rounds.metric not in names:
            known = nearest(rounds.metric, list(names)[:_MAX_NAMES])
            raise OutputError(
                f"{place}: sweep.rounds.metric: unknown number {rounds.metric}{known}"
            )
        raise OutputError(
            f"{place}: sweep.rounds.metric: no member of this round has {rounds.metric}: all failed"
        )
    return scores


def lines_of(rounds: Rounds, records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A line for each round, and one for the best candidate."""
    for number, record in enumerate(records, 1):
        budget = f"{rounds.budget}={record['budget'][rounds.budget]}"
        kept = len(record["kept"])
        yield f"round {number}: candidates: {record['candidates']}, {budget}, {kept} kept"
    best = records[-1]["kept"][0]
    who = words(best["asked"]) or "the only candidate"
    yield f"best: {who}: {rounds.metric} = {best[rounds.metric]:.6g}"
