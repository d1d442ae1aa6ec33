"""What a run costs before its first prediction, beside the same network packed: time, memory, libraries imported.

Every figure is of a fresh process. "start": `htaf predict` of one row or image, from the command to its exit. "load":
importing and reading the network alone, without a prediction: htaf.runs.open_run(...).model(), or htaf.packed.load.

    python benchmarks/packed_import.py --rounds 7 --json results/packed_import.json
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import Sample, alternate, one_line, parser, ratio, spread, test_first, warn_when_busy, write

from htaf import packed, runs
from htaf.data import images as image_data
from htaf.data.preprocess import Preprocessor
from htaf.models.build import build
from htaf.runs.packed import run_extra

HEAVY = ("lightning", "timm", "transformers", "torchvision", "sklearn", "pandas", "matplotlib")
WAYS = {
    "predict": "from htaf import cli; sys.argv = ['htaf', 'predict', *sys.argv[1:], '--json']; cli.main()",
    "run": "from htaf.runs import open_run; open_run(sys.argv[1]).model()",
    "packed": "from htaf import packed; packed.load(sys.argv[1])",
}
# The peak of the child's memory, and what it imported. On Linux ru_maxrss begins with that of the parent, VmHWM at 0.
TELL = f"""
import os, resource
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
if os.path.exists("/proc/self/status"):
    peak = next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps([peak, [name for name in {HEAVY} if name in sys.modules]]), file=sys.stderr)
"""


def child(way: str, *words: Path) -> tuple[Sample, list[str]]:
    """(seconds, bytes), and the heavy libraries imported."""
    code = f"import json, sys\n{WAYS[way]}\n{TELL}"
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True)
    spent = time.perf_counter() - start
    if done.returncode:
        sys.exit(f"{way} of {words[0]} failed:\n{done.stderr}")
    peak, names = json.loads(done.stderr.strip().splitlines()[-1])
    return (spent, float(peak)), names


def finished(folder: Path, description: dict[str, Any], preprocessor: Any, x: torch.Tensor) -> tuple[Path, Path]:
    """A run folder of a network that nobody trained, and the packed file of the same network."""
    torch.manual_seed(0)
    net = build(description).train()
    with torch.no_grad():
        for _ in range(5):
            net(x)
    identity = {
        "recipe": {"method": "htaf", "train_images": 0, "validation_images": 0.1},
        "seed": 0,
        "data": {"name": "made", "fingerprint": "", "task": "classification"},
    }
    record = runs.start_run(folder / "run", identity)
    record |= {"model": description, "headline": "accuracy", "rows": {}, "best_epoch": 0, "notes": [], "metrics": {}}
    run = runs.finish_run(folder / "run", record, net.eval(), preprocessor)
    out = folder / "net.packed"
    extra = run_extra(images=run.takes_images, preprocessing=preprocessor.to_json(), about={})
    packed.save(packed.pack(run.model(), x[:16]), out, extra=extra)
    return folder / "run", out


def table(folder: Path) -> tuple[Path, Path, Path]:
    import pandas as pd

    rng = np.random.default_rng(0)
    frame = pd.DataFrame({f"x{i}": rng.normal(size=200) for i in range(20)} | {"kind": rng.choice([*"abc"], 200)})
    preprocessor = Preprocessor.fit(
        frame, np.arange(200) % 2, task="classification", target_name="label", classes=("no", "yes")
    )
    x = torch.from_numpy(preprocessor.transform(frame))
    activation = {"method": "htaf", "alpha0": 2.0, "alpha1": 11.0}
    description = {"kind": "mlp", "in_features": x.shape[1], "hidden": [256, 256], "out_features": 2,
                   "batch_norm": True, "activation": activation}  # fmt: skip
    frame.head(1).to_csv(folder / "row.csv", index=False)
    return *finished(folder, description, preprocessor, x), folder / "row.csv"


def images(folder: Path) -> tuple[Path, Path, Path]:
    from PIL import Image

    digits = image_data.load("digits")
    rows = torch.arange(200)
    preprocessor = image_data.fit_preprocessor(digits, rows)
    x = preprocessor.normalise(digits.train.batch(rows))
    description = {"kind": "wide_resnet", "depth": 16, "width": 1, "dropout": 0.0, "in_channels": 1,
                   "out_features": 10, "activation": {"method": "htaf", "alpha0": 2.0, "alpha1": 11.0}}  # fmt: skip
    Image.fromarray(digits.train.batch(rows[:1])[0, 0].numpy()).save(folder / "image.png")
    return *finished(folder, description, preprocessor, x), folder / "image.png"


def measured(name: str, made: tuple[Path, Path, Path], rounds: int) -> list[dict[str, Any]]:
    run, file, given = made
    asked = {("start", "run"): ("predict", run, given), ("start", "packed"): ("predict", file, given),
             ("load", "run"): ("run", run), ("load", "packed"): ("packed", file),
    }  # fmt: skip
    imported: dict[str, list[str]] = {}

    def sampling(key: tuple[str, str]) -> Callable[[], Sample]:
        def one() -> Sample:
            sample, imported[str(key)] = child(*asked[key])  # pyright: ignore[reportArgumentType]
            return sample

        return one

    times = alternate({str(key): sampling(key) for key in asked}, rounds)
    rows = []
    for what, form in asked:
        mine, base = times[str((what, form))], times[str((what, "run"))]
        seconds, peak = (spread(sample[part] for sample in mine) for part in (0, 1))
        rows.append({
            "network": name, "what": what, "form": form, "threads": None, "rounds": rounds,
            "seconds": seconds._asdict(), "peak_bytes": peak._asdict(), "of_run": ratio(mine, base)._asdict(),
            "peak_of_run": ratio(mine, base, 1)._asdict(), "imported": imported[str((what, form))],
            "file_bytes": file.stat().st_size if form == "packed" else (run / runs.MODEL).stat().st_size,
        })  # fmt: skip
        print(
            f"{name:7} {what:6} {form:7} {seconds} s, {peak.median / 2**20:.0f} MiB; of the run: time "
            f"{ratio(mine, base)}, memory {ratio(mine, base, 1)}; imports {', '.join(rows[-1]['imported']) or 'none'}"
        )
    return rows


def main() -> None:
    made = parser(__doc__, rounds=7)
    args = made.parse_args()
    if not args.no_test:
        test_first("test_cli_pack.py")
    warn_when_busy()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for kind, maker in (("table", table), ("images", images)):
            (folder := Path(name) / kind).mkdir()
            rows += measured(kind, maker(folder), args.rounds)
    print(one_line())
    write(args.json, rows)


if __name__ == "__main__":
    main()
