"""Configs and a CSV file of a few lines, and how one wrong config is reported."""

HOLDOUT = """\
study: holdout
data:
  source: heteroskedastic
  n: 20
training:
  steps: 4
hold_out: [1, 0.5]
"""
HEADS = """\
study: heads
data: {source: heteroskedastic, n: 20}
heads: [1, 2]
"""
LEAVE_ONE_OUT = """\
study: leave_one_out
data:
  source: bundled
  name: mcycle
"""
DATA = "study: data\ndata: {source: heteroskedastic, n: 20}\n"
CSV = "a,b,c\n1,2,0.5\n2,3,1.5\n3,5,0.0\n4,4,2.5\n5,4.5,1.0\n6,6,2.0\n7,5.5,0.2\n8,7,1.2\n"
FIT_OF_CSV = """\
study: leave_one_out
data:
  source: csv
  path: mine.csv
  x: a
  y: b
"""


def small_holdout(rows, training, sizes, first=""):
    """The config of a hold-out study of few rows; `first`: lines before its data."""
    return (
        f"study: holdout\n{first}data: {{source: heteroskedastic, n: {rows}}}\n"
        f"training: {{{training}}}\nhold_out: {sizes}\n"
    )


# its training is one program for all tests of a process
TRAINED = small_holdout(23, "steps: 5, learning_rate: 0.3", [2, 7], "seed: 3\n")


def assert_one_error(lines, start, *fragments):
    """One line, with this start and all of these fragments."""
    (line,) = lines
    assert line.startswith(start)
    assert [fragment for fragment in fragments if fragment not in line] == []


def places(lines):
    """The file, the line and the field that each line begins with."""
    return [": ".join(line.split(": ")[:2]) + ": " for line in lines]


# overrides that make studies of the ledger short
SMALL_LOCAL_POLYNOMIALS = ("lengths=[32, 128]", "data_sets=40", "chosen=8", "candidates=5")
SMALL_STATE_PRECISION = ("rows=1024", "spreads=[0.3]", "forgetting=[1, 0.9]", "ridges=[0.01]")
SMALL_IN_CONTEXT_KERNEL = ("data=[iris, moons]", "rows=100", "splits=2", "timed=iris", "repeats=2")
SMALL_RESIDUALS = ("pieces=[3]", "rows=24", "sequences=2", "timed=24", "repeats=1", "steps=3")
