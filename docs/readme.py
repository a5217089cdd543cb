"""Writes README.md from `docs/templates/README.md`: `python docs/readme.py`.

Its numbers come from the kept runs in `docs/summaries/`, as those of the documentation's pages do.
"""

import sys
from pathlib import Path

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path[:0] = [str(ROOT), str(DOCS / "extensions")]

import templates  # noqa: E402


def readme() -> str:
    return templates.render((DOCS / "templates" / "README.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    (ROOT / "README.md").write_text(readme(), encoding="utf-8")
