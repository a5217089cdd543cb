"""Folders of the checkout that tests read."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs"
DOCS = ROOT / "docs"
