"""Files that commands write, and commands in processes of their own."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

from paths import ROOT


def read_json(path):
    return json.loads(Path(path).read_text("utf-8"))


def read_lines(path):
    """The rows of a file with an object of JSON in each line."""
    return [json.loads(line) for line in Path(path).read_text("utf-8").splitlines()]


def read_csv(path):
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file))


def start(*arguments, program=("-m", "experiments"), before=(), env=None, cwd=None):
    """Starts `python -m experiments ...` in a process of its own."""
    return subprocess.Popen(
        [*before, sys.executable, *program, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": str(ROOT)} | (env or {}),
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
