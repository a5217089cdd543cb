"""Configs that are none: refused with a sentence, in little time and memory, and nothing made.

`pytest tests/test_fuzz.py --fuzz 10000` tries so many; a few by default.
"""

import contextlib
import os
import random
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments import runner
from experiments.config import ConfigError

CONFIGS = [path.read_bytes() for path in sorted((Path(__file__).parents[2] / "configs").iterdir())]
SNIPPETS = [
    *(b"1e400", b"1e-400", b"-1", b".nan", b".inf", b"null", b"~", b"true", b"1_000", b"0x10"),
    *(b"9" * 5000, b"1:30", b"2026-01-01", b"[]", b"{}", b"''", b'"', b"'", b"|", b">", b"\t"),
    *(
        b"[" * 3000,
        b"{a: " * 3000,
        b"- " * 3000,
        b"&a [*a, *a]",
        b"<<: *a",
        b"? x",
        b"%TAG",
        b"---",
    ),
    *(
        b"!!python/object/apply:os.system [ls]",
        b"!!binary aGk=",
        b"\x00",
        b"\xff\xfe",
        b"\xef\xbb\xbf",
    ),
    "ℓ\u202e😀\u2028".encode(),
    *(b"../../x", b"/dev/zero", b"name: ../x", b"name: /x", b"name: a/b", b"seed: 4294967296"),
    b"data: {source: csv, path: /dev/zero, x: a, y: b}",
    b"data: {source: csv, path: ., x: a, y: b}",
    b"data: {source: csv, path: 'a\\0b', x: a, y: b}",
]


def mutated(rng: random.Random) -> bytes:
    """A config of ours, changed in one to eight places."""
    text = bytearray(rng.choice(CONFIGS))
    for _ in range(rng.choice([1, 1, 1, 2, 3, 8])):
        i, j = sorted(rng.randrange(len(text) + 1) for _ in range(2))
        lines = bytes(text).split(b"\n")
        line = rng.randrange(len(lines))
        match rng.randrange(7):
            case 0 if text:
                text[i % len(text)] ^= 1 << rng.randrange(8)
            case 1:
                text[i:i] = rng.choice(SNIPPETS)
            case 2:
                del text[i:j]
            case 3:  # another value of a field
                lines[line] = lines[line].split(b":")[0] + b": " + rng.choice(SNIPPETS)
                text = bytearray(b"\n".join(lines))
            case 4:
                lines.insert(line, rng.choice(lines))
                text = bytearray(b"\n".join(lines))
            case 5:
                text += rng.choice(CONFIGS)[: rng.randrange(200)]
            case _:
                text[i:i] = rng.randbytes(rng.randrange(6))
    return bytes(text)


def test_no_file_is_more_than_refused(tmp_path, monkeypatch, request):
    monkeypatch.chdir(tmp_path)
    path, rng = tmp_path / "c.yaml", random.Random(0)
    for text in CONFIGS:  # so that only the reading of files is timed, and no compilation
        path.write_bytes(text)
        runner.load(path, [])
    before, refused = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, 0
    number = request.config.getoption("--fuzz")
    for _ in range(number):
        text = mutated(rng)
        path.write_bytes(text)
        began, bad = time.process_time(), True
        with contextlib.suppress(ConfigError):
            runner.load(path, [])
            bad = False
        refused += bad
        assert not bad or time.process_time() - began < 2.0, text
    assert refused > number / 2
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 500e3  # kB
    assert [file.name for file in tmp_path.iterdir()] == ["c.yaml"]


@pytest.mark.parametrize("name", ["../x", "/x", "a/b", "", ".", "..", "a\\0b", "x" * 65, "é"])
def test_a_name_is_no_path(tmp_path, name):
    path = tmp_path / "c.yaml"
    path.write_text(f'study: data\nname: "{name}"\ndata: {{source: heteroskedastic}}\n')
    with pytest.raises(ConfigError, match="name"):
        runner.load(path, [])


@pytest.mark.parametrize("kind", ["device", "pipe", "long", "wide", "override"])
def test_what_has_no_end_is_refused_at_once(tmp_path, kind):
    """By the command itself, in little memory: 2 s beside what it takes to begin."""
    config, more = tmp_path / "c.yaml", []
    config.write_bytes(CONFIGS[0])
    if kind == "device":
        config = Path("/dev/zero")
    elif kind == "pipe":
        config = tmp_path / "pipe"
        os.mkfifo(config)
    elif kind == "long":
        config.write_text("a: [" + "1," * 250_000 + "1]")
    elif kind == "wide":  # as long as a config may be, and wrong all over
        config.write_text("study: holdout\n" + "".join(f"a{i}: {i}\n" for i in range(2500)))
    else:
        more = ["seed=[" + "1," * 50_000 + "1]"]
    script = (
        "import resource, sys, time\n"
        "from experiments.__main__ import main\n"
        "from experiments import runner\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "began = time.perf_counter()\n"
        "code = main(sys.argv[1:])\n"
        "grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before\n"
        "print(code, time.perf_counter() - began, grown)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "show", str(config), *more],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    code, seconds, kilobytes = map(float, done.stdout.split()[-3:])
    assert code == 2
    assert "Traceback" not in done.stderr
    assert seconds < 2
    assert kilobytes < 500e3
