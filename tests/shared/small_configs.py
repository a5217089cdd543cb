"""Configs of a few lines, and how one wrong config is reported."""

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
BENCH = """\
study: bench_training
data: {source: heteroskedastic, n: 20}
hold_out: [1]
"""


def assert_one_error(lines, start, *fragments):
    """One line, with this start and all of these fragments."""
    (line,) = lines
    assert line.startswith(start)
    assert [fragment for fragment in fragments if fragment not in line] == []
