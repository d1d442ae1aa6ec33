"""The server of `htaf serve` for benchmarks/serving.py, with the network in other forms.

/predict answers in batches. /alone answers each request by a pass of its own, and /empty without any network; HTAF_ONLY
leaves both out. HTAF_FORM: packed (a file of `htaf pack`), eager or onnxruntime (a run folder, the exact network in
float32).
"""

import os
import sys
from pathlib import Path

import tyro
from mosec import Server

from htaf.cli.serving import Answer, Predict, prepared


class Form(Predict):
    """Predicts by the network in the form that is asked for; all else is as `htaf serve` does it."""

    def open(self, path):
        form = os.environ["HTAF_FORM"]
        if form == "packed":
            return super().open(path)
        from htaf.training.runs import PackedRun, open_run

        run = open_run(path)
        model = float32(run) if form == "eager" else session(path / "net.onnx")
        return PackedRun(path, model, run.takes_images, run.preprocessor().to_json(), {})


def float32(run):
    """The exact network of a run for PyTorch eager: constant binary weights, steps as comparisons, channels last."""
    import torch

    sys.path.insert(0, str(Path(__file__).parent))
    from packed import plain

    model = plain(run.model())
    return model.to(memory_format=torch.channels_last) if run.takes_images else model


def session(file):
    """A module that runs an ONNX file in onnxruntime."""
    import onnxruntime
    import torch

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = int(os.environ["HTAF_SERVE_THREADS"]), 1
    opened = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])

    class Session(torch.nn.Module):
        def forward(self, x):
            return torch.from_numpy(opened.run(None, {"input": x.numpy()})[0])

    return Session()


class Empty(Predict):
    """What a request costs without a network."""

    def __init__(self):
        super(Predict, self).__init__()

    def answers(self, bodies):
        return [b"200{}"] * len(bodies)


def main(file: tyro.conf.Positional[Path], *, port: int, batch: int = 32, batch_wait: int = 1) -> None:
    prepared(file, port=port)
    server = Server()
    server.append_worker(Form, 1, batch, batch_wait, route="/predict")
    server.append_worker(Answer, route="/predict")
    if "HTAF_ONLY" not in os.environ:
        server.append_worker(Form, route="/alone")
        server.append_worker(Empty, 1, batch, batch_wait, route="/empty")
        for route in ("/alone", "/empty"):
            server.append_worker(Answer, route=route)
    server.run()


if __name__ == "__main__":
    tyro.cli(main)
