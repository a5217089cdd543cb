"""Prints, for each callable, how many misuses raised a sentence or something else, or returned.

`PYTHONPATH=tests/shared python -m misuse [NAME...]`
"""

import sys
from collections import Counter

import jaxtyping
import matplotlib as mpl

from .verdict import CALLABLES, verdicts


def main() -> None:
    """Prints the table of counts, and what is no sentence."""
    mpl.use("Agg")
    jaxtyping.config.update("jaxtyping_disable", True)
    wanted = sys.argv[1:] or list(CALLABLES)
    total: Counter[str] = Counter()
    kinds = ("sentence", "other error", "warning", "silent", "legal")
    print(f"{'callable':36} {'calls':>6} " + " ".join(f"{kind:>12}" for kind in kinds))
    odd = []
    for name in wanted:
        found = verdicts(name, CALLABLES[name][1])
        counts = Counter(verdict.what for verdict in found)
        total += counts
        odd += [verdict for verdict in found if verdict.what in ("other error", "silent")]
        print(f"{name:36} {len(found):6} " + " ".join(f"{counts[kind]:12}" for kind in kinds))
    print(f"{'all':36} {total.total():6} " + " ".join(f"{total[kind]:12}" for kind in kinds))
    errors = total["sentence"] + total["other error"]
    print(f"{100 * total['sentence'] / max(errors, 1):.1f} % of errors are sentences")
    for verdict in odd:
        said = " ".join(verdict.said.split())[:150]
        print(f"{verdict.what}: {verdict.name}({verdict.argument}: {verdict.misuse}) {said}")


main()
