"""PyC's interventions and metrics and captum's TCAV on an ICBM, beside htaf's own.

htaf train icbm --data digits --depth 10 --concepts 32 --epochs 6 --out runs/icbm
htaf concepts extract runs/icbm --out runs/codes
pip install -e '.[images]' -r benchmarks/peers/concepts/requirements.txt
python benchmarks/peers/concepts/compare.py runs/icbm runs/codes [--concepts 32]
"""

from __future__ import annotations

import argparse
import tempfile
import warnings

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

from htaf.concepts.codes import Codes
from htaf.concepts.store import open_codes
from htaf.training.runs import open_run


def pyc(model: nn.Module, codes: Codes, images: torch.Tensor) -> None:
    from torch_concepts.nn import DoIntervention, UniformPolicy, intervention
    from torch_concepts.nn.functional import cace_score, tcav_score

    act = model.get_submodule("act")
    differ, effects = 0.0, 0.0
    for j in range(codes.concepts):
        found, bits = [], codes.part("test").unpack().astype(np.float32)
        for value in (0.0, 1.0):
            with torch.no_grad(), intervention(act, DoIntervention(value), UniformPolicy(), [j]):
                found.append(model(images))
            bits[:, j] = value
            flipped = bits @ codes.weight.T + codes.bias
            differ = max(differ, float(np.abs(found[-1].numpy() - flipped).max()))
        effects = max(effects, float(np.abs(cace_score(*found).numpy() - codes.weight[:, j]).max()))
    print(f"intervention(act, DoIntervention), every bit: logits {differ:g} from those of bits set by hand")
    print(f"cace_score, every bit: {effects:g} from the head's weights")
    bits = torch.tensor(codes.part("test").unpack()).float()
    signs = [tcav_score(bits, model.get_submodule("head"), torch.eye(codes.concepts), target=k) for k in range(10)]
    print(
        f"tcav_score of single bits is the sign of the weight: {np.array_equal(torch.stack(signs), codes.weight > 0)}"
    )


def captum(model: nn.Module, codes: Codes, images: torch.Tensor, count: int) -> None:
    from captum.concept import TCAV, Concept

    torch.manual_seed(0)
    test = codes.part("test")
    rates = test.unpack().mean(0)
    chosen = np.argsort(np.abs(rates - 0.5))[:count].tolist()
    agree = []
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tcav = TCAV(model, ["act"], save_path=folder)
        sides = []
        for j in chosen:
            rows = [np.flatnonzero(on) for on in (test.has(j), ~test.has(j))]
            loaders = [DataLoader(images[found], batch_size=64) for found in rows]  # pyright: ignore[reportArgumentType]
            sides.append([Concept(2 * j + i, f"{j}-{i}", loader) for i, loader in enumerate(loaders)])
        for k in range(len(codes.classes)):
            scores = tcav.interpret(images[test.labels == k], sides, target=k)
            for j in chosen:  # by key: the order of many is another
                share = float(scores[f"{2 * j}-{2 * j + 1}"]["act"]["sign_count"][0])
                agree.append((share > 0.5) == (codes.weight[k, j] > 0))
    print(f"captum's TCAV at act: the sign of the head's weight in {np.mean(agree):.0%} of {len(agree)} pairs")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("codes")
    parser.add_argument("--concepts", type=int, default=32, help="of TCAV: the most even ones")
    given = parser.parse_args()
    run, codes = open_run(given.run), open_codes(given.codes)
    images = torch.cat([x for x, _ in run.part("test")])
    pyc(run.model(), codes, images)
    captum(run.model(), codes, images, given.concepts)
