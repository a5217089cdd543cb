"""Tests that the list of faults fits the sources: each changes one place, and still compiles."""

import json
import tomllib
from collections import Counter
from pathlib import Path

from paths import DOCS, ROOT

LIST = tomllib.loads(Path(__file__).with_name("faults.toml").read_text(encoding="utf-8"))
FAULTS = LIST["fault"]


def test_faults_have_a_name_of_their_own_and_say_what_they_break():
    assert [name for name, count in Counter(f["name"] for f in FAULTS).items() if count > 1] == []
    keys = {"name", "breaks", "file", "old", "new"}
    assert [fault for fault in FAULTS if fault.keys() != keys or not fault["breaks"]] == []


def test_each_fault_changes_one_place_and_still_compiles():
    wrong = {}
    for fault in FAULTS:
        text = (ROOT / fault["file"]).read_text(encoding="utf-8")
        count = text.count(fault["old"])
        if count != 1 or fault["old"] == fault["new"]:
            wrong[fault["name"]] = f"`old` occurs {count} times in {fault['file']}"
            continue
        compile(text.replace(fault["old"], fault["new"]), fault["file"], "exec")
    assert wrong == {}


def test_kept_results_are_of_these_faults_and_all_are_caught():
    """Else: run `tests/faults/catch.py`, and write a test for what it does not catch."""
    found = json.loads((DOCS / "faults.json").read_text(encoding="utf-8"))["faults"]
    assert list(found) == [fault["name"] for fault in FAULTS]
    assert [name for name, row in found.items() if not row["caught_by_all"]] == []


def test_every_package_has_a_fault():
    packages = {path.parent for path in (ROOT / "attnkernel").rglob("*/__init__.py")}
    packages.add(ROOT / "experiments")
    without = packages - {(ROOT / fault["file"]).parent for fault in FAULTS}
    assert without == set()
