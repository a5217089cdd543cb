"""Broken configs: refused with an error, in little time and memory, without writing a file.

`pytest tests/experiments/test_config_fuzz.py --all --fuzz 10000` tries 10,000.
"""

import contextlib
import os
import random
import resource
import time
import tracemalloc

import pytest
from paths import CONFIGS

from experiments.config.loading import ConfigError
from experiments.runs import runner

SHIPPED = [path.read_bytes() for path in sorted(CONFIGS.iterdir())]
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
    *(b"!!python/object/apply:os.system [ls]", b"!!binary aGk="),
    *(b"\x00", b"\xff\xfe", b"\xef\xbb\xbf"),
    "ℓ\u202e😀\u2028".encode(),
    *(b"../../x", b"/dev/zero", b"name: ../x", b"name: /x", b"name: a/b", b"seed: 4294967296"),
    b"data: {source: csv, path: /dev/zero, x: a, y: b}",
    b"data: {source: csv, path: ., x: a, y: b}",
    b"data: {source: csv, path: 'a\\0b', x: a, y: b}",
]


def mutated(rng: random.Random, places: int) -> bytes:
    """A shipped config, changed in so many places."""
    text = bytearray(rng.choice(SHIPPED))
    for _ in range(places):
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
                text += rng.choice(SHIPPED)[: rng.randrange(200)]
            case _:
                text[i:i] = rng.randbytes(rng.randrange(6))
    return bytes(text)


@pytest.mark.slow
def test_mutated_configs_are_loaded_or_refused(tmp_path, request):
    path, rng = tmp_path / "c.yaml", random.Random(0)
    for text in SHIPPED:  # so that reading is timed, and no compilation
        path.write_bytes(text)
        runner.load(path, [])
    before, refused = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, 0
    number = request.config.getoption("--fuzz")
    for _ in range(number):
        text = mutated(rng, rng.choice([1, 1, 1, 2, 3, 8]))
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


def endless(folder):
    """The arguments of `show` for configs without an end, and for very long ones."""
    os.mkfifo(folder / "pipe.yaml")
    fields = "".join(f"a{i}: {i}\n" for i in range(2500))  # as long as a config may be
    (folder / "fields.yaml").write_text(f"study: holdout\n{fields}")
    (folder / "list.yaml").write_text("a: [" + "1," * 250_000 + "1]")
    (folder / "shipped.yaml").write_bytes(SHIPPED[0])
    yield from (["/dev/zero"], ["pipe.yaml"], ["fields.yaml"], ["list.yaml"])
    yield ["shipped.yaml", "seed=[" + "1," * 50_000 + "1]"]


@pytest.mark.slow
def test_endless_config_is_refused_in_little_time_and_memory(home, error_of):
    for arguments in endless(home):
        began = time.process_time()
        error_of("show", *arguments)
        assert time.process_time() - began < 2
        tracemalloc.start()  # it takes time
        error_of("show", *arguments)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 500e6
