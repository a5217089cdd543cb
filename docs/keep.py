"""Copies the results of finished runs into the documentation: `python docs/keep.py RUN...`.

For each run it writes `summaries/CONFIG.json`, its numbers with its command, config, date, commit,
versions and device, without any path, and `gallery/CONFIG/*.png`, its figures reduced in size.
`python docs/write.py` then writes them into the pages.
"""

import argparse
import io
import json
import shlex
from pathlib import Path

import yaml
from PIL import Image

DOCS = Path(__file__).parent
MAX_FIGURE_BYTES = 120_000
WIDTHS = (1300, 1100, 900, 700)  # pixels; the widest whose file is at most MAX_FIGURE_BYTES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="directories of runs")
    parser.add_argument("--device", help="such as 'two cores of a CPU'")
    options = parser.parse_args()
    for run in options.runs:
        keep(run, options.device)


def keep(run: Path, device: str | None) -> None:
    status, meta = (json.loads((run / f"{name}.json").read_text()) for name in ("status", "meta"))
    if status["state"] != "done":
        raise SystemExit(f"{run} is not a finished run: {status}.")
    if meta.get("caches_programs"):
        raise SystemExit(
            f"The seconds of {run} may lack compilation: repeat it with the environment variable "
            f"JAX_ENABLE_COMPILATION_CACHE=false."
        )
    _, verb, config, *given = meta["command"]
    if verb != "run":
        raise SystemExit(f"{run} is of `{verb}`; keep takes those of `run`.")
    # the kept command has the overrides of fields, but not where the run was written
    place = argparse.ArgumentParser(add_help=False)
    place.add_argument("--out")
    place.add_argument("--quiet", action="store_true")
    overrides = place.parse_known_args(given)[1]
    name = Path(config).stem
    words = ["python", "-m", "experiments", "run", f"configs/{name}.yaml", *overrides]
    kept = {
        "command": shlex.join(words),
        "date": meta["started"][:10],
        "seconds": round(meta["seconds"]["total"]),
        # None for a run from uncommitted files
        "commit": None if meta["git"]["changed"] else meta["git"]["commit"],
        "device": device or ", ".join(sorted({d.partition(":")[0] for d in meta["devices"]})),
        "precision": meta["precision"],
        "versions": {"python": meta["python"], **meta["versions"]},
        "config": yaml.safe_load((run / "config.yaml").read_text()),
        "summary": json.loads((run / "summary.json").read_text()),
    }
    path = DOCS / "summaries" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    gallery = DOCS / "gallery" / name
    gallery.mkdir(parents=True, exist_ok=True)
    for old in gallery.glob("*.png"):
        old.unlink()
    for figure in sorted((run / "figures").glob("*.png")):
        (gallery / figure.name).write_bytes(reduced_png(figure))


def reduced_png(path: Path) -> bytes:
    """Returns the figure in 256 colours, as wide as MAX_FIGURE_BYTES allows."""
    with Image.open(path) as file:
        whole = file.convert("RGB")
    for width in WIDTHS:
        image = whole
        if whole.width > width:
            height = round(whole.height * width / whole.width)
            image = whole.resize((width, height), Image.Resampling.LANCZOS)
        file = io.BytesIO()
        image.quantize(256, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
        if file.tell() <= MAX_FIGURE_BYTES:
            break
    return file.getvalue()


if __name__ == "__main__":
    main()
