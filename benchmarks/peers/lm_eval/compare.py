"""Accuracy of multiple choice: `htaf.language.scores` beside lm-evaluation-harness, on the same files.

    python compare.py MODEL --openbookqa FILE --winogrande FILE [--limit 200]

In an environment with htaf and lm-eval==0.4.13. MODEL: a folder of transformers. FILE: JSON lines as published. The
harness's own definitions of both tasks are used; only where the questions come from is changed. Exit code 1 where an
accuracy differs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from htaf.language import files, text  # before what imports torchvision  # isort: skip
import lm_eval
from lm_eval.api.task import ConfigurableTask
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks.winogrande import preprocess_winogrande

from htaf.language.scores import choice_scores


def harness_tasks(given: argparse.Namespace) -> list[Any]:
    """The tasks as the harness's YAML files state them, on local files."""
    common = {"output_type": "multiple_choice", "test_split": "test", "dataset_path": "json", "num_fewshot": 0}
    metrics = [{"metric": name, "aggregation": "mean", "higher_is_better": True} for name in ("acc", "acc_norm")]
    openbookqa = common | {
        "task": "openbookqa-local", "dataset_kwargs": {"data_files": {"test": str(given.openbookqa)}},
        "doc_to_text": lambda doc: doc["question"]["stem"],
        "doc_to_target": lambda doc: [c["label"] for c in doc["question"]["choices"]].index(doc["answerKey"]),
        "doc_to_choice": lambda doc: [c["text"] for c in doc["question"]["choices"]], "metric_list": metrics,
    }  # fmt: skip
    winogrande = common | {
        "task": "winogrande-local", "dataset_kwargs": {"data_files": {"test": str(given.winogrande)}},
        "doc_to_text": preprocess_winogrande.doc_to_text, "doc_to_target": preprocess_winogrande.doc_to_target,
        "doc_to_choice": preprocess_winogrande.doc_to_choice, "metric_list": metrics[:1],
    }  # fmt: skip
    return [ConfigurableTask(config=config) for config in (openbookqa, winogrande)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--openbookqa", type=Path, required=True)
    parser.add_argument("--winogrande", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=200)
    given = parser.parse_args()
    model, tokenizer = files.load(given.model)
    network = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=16, device="cpu")
    found = lm_eval.simple_evaluate(network, tasks=harness_tasks(given), limit=given.limit, bootstrap_iters=0)
    assert found is not None
    wrong = False
    for name in ("openbookqa", "winogrande"):
        theirs = found["results"][f"{name}-local"]
        ours = choice_scores(model, tokenizer, text.questions(getattr(given, name))[0][: given.limit])
        pairs = [("acc", ours.accuracy), ("acc_norm", ours.normalised)]
        for metric, mine in pairs[: 2 if name == "openbookqa" else 1]:
            other = theirs[f"{metric},none"]
            wrong |= abs(mine - other) > 1e-9
            print(f"{name} {metric}: htaf {mine:.4f}, lm-evaluation-harness {other:.4f}, {ours.questions} questions")
    sys.exit(wrong)


if __name__ == "__main__":
    main()
