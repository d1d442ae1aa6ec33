"""Open what htaf wrote, from a folder, a file or the Hugging Face hub, and share it there.

From the hub only tensors and JSON are fetched, under the file names that htaf writes: no code, no pickle. What was
fetched is read like any other folder: by the SHA-256 of its record, never as code.
"""

from __future__ import annotations

import ntpath
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from htaf._ground.console import markdown_text
from htaf._ground.errors import HtafError, installed, listed
from htaf._ground.files import regular
from htaf.core.contract import StepFactory
from htaf.data.notes import from_record, told
from htaf.models.hub import asking_hub
from htaf.program import packed
from htaf.training.runs import METRICS, MODEL, PREPROCESSING, RECORD, SMOOTH

if TYPE_CHECKING:
    from htaf.concepts.embeddings import ConceptBottleneck
    from htaf.training.runs import Run

NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")  # at the hub
REVISION = re.compile(r"(?!.*\.\.)\w[\w./-]{0,149}")
LICENSE = re.compile(r"[A-Za-z0-9][\w.+-]{0,63}")
_AT = re.compile(rf"({NAME.pattern})(?:@({REVISION.pattern}))?")
LARGEST = 1 << 28  # bytes of a JSON file
PACKED = "packed.safetensors"  # the name of a packed file at the hub
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".npy")
PLACES = ("name", "data_dir", "test", "from")  # of a record: may be paths
KEPT = ("recipe", "data", "model", "estimator", "positive")  # of a run's record, as it is
# folders of an absolute path, of Linux, macOS or Windows, in a text: in quotes they may have blanks
_FOLDERS = re.compile(
    r"""(?<=['"])(?:~|[A-Za-z]:)?[\\/](?:[^'"\\/]+[\\/])+"""
    r"""|(?:\bfile:/+|(?<![\w.:/\\~-])(?:~|[A-Za-z]:)?[\\/])(?:[^\\/\s'",;:()]+[\\/])+"""
)
_RELATIVE = re.compile(r"(~\w*|\.\.?)[\\/]")
TEMPLATE = Path(__file__).with_name("card.md.jinja")
NETWORKS = {
    "mlp": "An MLP", "wide_resnet": "A WideResNet", "resnet": "A ResNet", "bireal": "A Bi-Real Net",
    "sew_resnet": "A SEW-ResNet of spiking neurons",
}  # fmt: skip
BESIDE = {"direct": "a linear part of the inputs, in real numbers", "leaves": "leaves of boosted trees, as bits"}


class SharingError(HtafError):
    """What cannot be opened, fetched or shared."""


class Kind(NamedTuple):
    """A kind of folder: the file that marks it, patterns of what else belongs to it, and what reads it."""

    mark: str
    files: tuple[str, ...]
    read: Callable[[Path, StepFactory | None], Any]


def load(place: str | PathLike[str], *, revision: str | None = None, method: StepFactory | None = None) -> Any:
    """Open what htaf wrote: a run, an estimator, a packed file, a concept bottleneck.

        model = htaf.load("runs/iris")                           # a folder or a file
        model = htaf.load("owner/iris", revision="v1")           # at the Hugging Face hub, as it was at a tag or commit

    Nothing in a folder or a file is run as code.

    Args:
        place: a folder, a file, or a name at the hub, of which `owner/name@revision` is one revision.
        revision: a commit, branch or tag at the hub; None: its main branch.
        method: the class of the run's step where it was trained with one from outside htaf.

    Returns:
        `HtafClassifier` or `HtafRegressor` for a run on a table; `htaf.runs.Run` for a run on images;
        `htaf.runs.PackedRun` for a file of `htaf pack`; `PackedModel` for a file of `htaf.packed.save`;
        `ConceptBottleneck` for its `save`. `htaf.language.load` opens language models.

    Raises:
        HtafError: there is nothing that htaf wrote, it is damaged, or the hub cannot be reached: SharingError,
            RunError, PackedError or ConceptError.
    """
    path = fetched(place, revision)
    if path.is_dir():
        return _known(path, place).read(path, method)
    if path.is_file():
        return _packed(path)
    raise SharingError(f"expected a folder or a file that htaf wrote, or a name at the hub, found none at {place}")


def fetched(place: str | PathLike[str], revision: str | None = None) -> Path:
    """Return a folder or file of this machine: the one at `place`, else one fetched from the hub.

    A `Path`, or a text such as ./owner/name, is on this machine. A text owner/name is fetched from the hub, unless this
    machine has a folder called like the owner, as in runs/name. With a revision it is always fetched.

    Args:
        place, revision: as of `load`.

    Raises:
        SharingError: the hub cannot be reached, or has nothing by this name that htaf wrote.
    """
    path, text = Path(place), str(place)
    found = _AT.fullmatch(place) if isinstance(place, str) else None
    if revision is not None and not (isinstance(revision, str) and REVISION.fullmatch(revision)):
        raise SharingError(f"expected a commit, branch or tag as revision, got {revision!r:.80}")
    if found is None:
        if revision is not None:
            raise SharingError(f"revision= needs a name at the hub, owner/name, got {text}")
        return path
    name, behind = found.groups()
    if revision is None and (path.exists() or (behind is None and path.parent.is_dir())):
        return path
    revision = revision or behind
    with installed():
        from huggingface_hub import HfApi, snapshot_download
        from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    def fetch(patterns: Iterable[str], revision: str | None) -> Path:
        return Path(snapshot_download(name, revision=revision, allow_patterns=[*patterns], ignore_patterns=["*/*"]))

    try:
        with asking_hub(name):
            folder = fetch((kind.mark for kind in KINDS), revision)
            kind = _kind(folder) or _known(folder, text, HfApi().list_repo_files(name, revision=folder.name))
            folder = fetch((kind.mark, *kind.files), folder.name)  # of the same commit
    except RepositoryNotFoundError:
        raise SharingError(
            f"expected a folder, a file or a name at the hub, found neither here nor there {text}; what is private "
            "there needs a login, `hf auth login`"
        ) from None
    except RevisionNotFoundError:
        raise SharingError(f"expected a commit, branch or tag of {name} at the hub, got {revision!r:.80}") from None
    except HtafError:
        raise
    except Exception as error:  # the client raises nearly everything
        raise SharingError(f"there is no {text} here, nor can it be fetched from the hub: {_said(error)}") from None
    return folder / PACKED if kind.mark == PACKED else folder


def push_to_hub(
    what: Any,
    name: str,
    *,
    private: bool = False,
    revision: str | None = None,
    license: str | None = None,
) -> str:
    """Share at the Hugging Face hub what htaf wrote, with a model card made from its record; `htaf.load` opens it.

    It is read first, so nothing damaged is shared, and what belongs to it is written anew: paths of this machine,
    curves, reports and images of the training stay here. The card is replaced, and so is what was shared there before.

    Args:
        what: a folder or a file; or an estimator, a `ConceptBottleneck`, a `htaf.runs.Run` or a packed model.
        name: "owner/name" at the hub; made where it is not there. You are who `hf auth login` or HF_TOKEN says.
        private: only its owner, and whom the owner admits, can read it.
        revision: a branch; None: main.
        license: that the card gives, such as "apache-2.0"; None: the card gives none, and others must ask you.

    Returns:
        The commit, to be given to `htaf.load` as its revision.

    Raises:
        SharingError: it cannot be shared: the hub cannot be reached or refuses, or has it in public already and
            `private` was asked for. HtafError: as `load`, for a folder.
    """
    for value, form, expected in (
        (name, NAME, "owner/name, a name at the hub"), (revision, REVISION, "the name of a branch as revision"),
        (license, LICENSE, "the name of a license, such as apache-2.0"),
    ):  # fmt: skip
        if value is not None and not form.fullmatch(value):
            raise SharingError(f"expected {expected}, got {value!r:.80}")
    with installed():
        from huggingface_hub import HfApi
    with tempfile.TemporaryDirectory(prefix="htaf-") as place:
        folder = Path(place) / "shared"
        folder.mkdir()
        opened = _write(what, folder)
        (folder / "README.md").write_text(card(name, opened, license), encoding="utf-8")
        files, api = sorted(file.name for file in folder.iterdir()), HfApi(library_name="htaf")
        try:
            with asking_hub(name):
                api.create_repo(name, private=True if private else None, exist_ok=True)
                if private and not api.model_info(name).private:
                    raise SharingError(f"{name} is public already: make it private at the hub, or choose another")
                if revision is not None:
                    api.create_branch(name, branch=revision, exist_ok=True)
                owned = [pattern for kind in KINDS for pattern in (kind.mark, *kind.files)]
                return api.upload_folder(
                    repo_id=name, folder_path=folder, revision=revision, allow_patterns=files, delete_patterns=owned,
                    commit_message="What htaf.load opens",
                ).oid  # fmt: skip
        except HtafError:
            raise
        except Exception as error:  # the client raises nearly everything
            status = getattr(getattr(error, "response", None), "status_code", None)
            if isinstance(error, ConnectionError):
                why = "it is out of reach"
            elif status in (401, 403):
                why = f"it does not know you, or you may not write there ({status}): `hf auth login`, or HF_TOKEN"
            else:
                why = _said(error)
            raise SharingError(f"{name} cannot be written at the hub: {why}") from None


def _said(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _write(what: Any, folder: Path) -> Any:
    """Write into a new folder what is to be shared, as its kind writes it; gives what the card is made from."""
    from htaf.concepts.embeddings import ConceptBottleneck
    from htaf.data import image_sets
    from htaf.data import tabular as named
    from htaf.program.integer import files
    from htaf.program.integer.model import IntegerModel
    from htaf.training.runs import PackedRun, Run

    if isinstance(what, str | PathLike):
        path = Path(what)
        if not path.exists():
            raise SharingError(f"expected a folder or a file that htaf wrote, found none at {path}")
        kind = None if path.is_file() else _known(path, path)
        what = _packed(path) if kind is None else _run(path) if kind.mark == RECORD else kind.read(path, None)
    what = getattr(what, "run_", what)
    if isinstance(what, Run):
        held = {name: data for name, data in (what.in_memory().held or {}).items() if name != METRICS}
        record = without_paths(what.record)
        source = record.get("source") or {}
        sets = image_sets if what.takes_images else named
        if not sets.is_named(str(source.get("name"))):  # it is not there elsewhere: verbs then ask for --data
            record["source"] = source | {"name": None}
        what = replace(what, record=record, held=held)  # the card is made from this one too
        what.save(folder)
    elif isinstance(what, ConceptBottleneck):
        what.save(folder)
    elif isinstance(what, PackedRun | packed.PackedModel | IntegerModel):
        model = what.model if isinstance(what, PackedRun) else what
        if isinstance(model, IntegerModel):
            files.save(model.program, folder / PACKED)
        else:
            packed.save(model, folder / PACKED)
    else:
        raise SharingError(f"expected what htaf wrote, or a folder or file of it, got {type(what).__name__}")
    return what


def without_paths(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record whose texts name files without the folders of the machine where they were; of a run what its key is made
    of, and what has words of its data, stay."""

    def of(value: Any, name: str) -> Any:
        if isinstance(value, dict):
            return {key: of(inside, key) for key, inside in value.items()}
        if isinstance(value, list):
            return [of(inside, name) for inside in value]
        if not isinstance(value, str):
            return value
        place = _RELATIVE.match(value) or ntpath.isabs(value) or (name in PLACES and "://" not in value)
        return ntpath.basename(value.rstrip("/\\")) if place else _FOLDERS.sub("", value)

    kept = KEPT if "recipe" in record else ()
    return {name: value if name in kept else of(value, name) for name, value in record.items()}


def _kind(folder: Path) -> Kind | None:
    """Which kind a folder is; None: htaf did not write it."""
    return next((kind for kind in KINDS if (folder / kind.mark).is_file()), None)


def _known(folder: Path, place: object, there: Iterable[str] | None = None) -> Kind:
    """The kind of a folder; raises SharingError where htaf did not write it. there: names of all files of it."""
    if (kind := _kind(folder)) is not None:
        return kind
    names = sorted(file.name for file in folder.iterdir()) if there is None else sorted(there)
    marks = ", ".join(kind.mark for kind in KINDS)
    said = f"expected a folder that htaf wrote, with one of {marks}, {place} has none"
    if "config.json" in names:
        raise SharingError(f"{said}: its config.json is of another library; htaf.language.load reads language models")
    if pickles := [name for name in names if name.endswith(PICKLES)]:
        raise SharingError(f"{said}; {listed(pickles, 3)} is of another library, and a pickle can run code: not read")
    raise SharingError(f"{said}; it holds {listed(names, 5)}" if names else f"{said}: it is empty")


def _small(file: Path) -> bytes:
    """The bytes of a JSON file; SharingError where there are more than a record has."""
    if (size := regular(file).stat().st_size) > LARGEST:
        raise SharingError(f"{file}: expected at most {LARGEST:,} bytes of JSON, got {size:,}")
    return file.read_bytes()


def _run(folder: Path, method: StepFactory | None = None) -> Run:
    from htaf.training.runs import open_run

    for name in (RECORD, PREPROCESSING):
        if (folder / name).is_file():
            _small(folder / name)
    return open_run(folder, method=method)


def _run_or_estimator(folder: Path, method: StepFactory | None) -> Any:
    from htaf.tables.estimators import of_run

    run = _run(folder, method)
    return run if run.takes_images else of_run(run)


def _packed(file: Path) -> Any:
    from htaf.program.integer.model import load

    model = load(file)
    if "run" not in model.extra:
        return model
    from htaf.training.runs.packed import as_run

    return as_run(model, file)


def _bottleneck(folder: Path) -> Any:
    from htaf.concepts.embeddings import RECORD, ConceptBottleneck

    _small(folder / RECORD)
    return ConceptBottleneck.load(folder)


KINDS = (
    Kind(RECORD, (MODEL, SMOOTH, PREPROCESSING), _run_or_estimator),
    Kind("bottleneck.json", ("bottleneck.safetensors",), lambda folder, _: _bottleneck(folder)),
    Kind(PACKED, (), lambda folder, _: _packed(folder / PACKED)),
)


def card(name: str, what: Any, license: str | None) -> str:
    """Return README.md of a folder at the hub.

    Args:
        name: owner/name. what: a run, a packed network or a `ConceptBottleneck`. license: None: none is given.
    """
    with installed():
        from huggingface_hub import EvalResult, ModelCard, ModelCardData

        from htaf.program.integer.model import IntegerModel
        from htaf.training.runs import PackedRun, Run
    facts: dict[str, Any]
    if isinstance(what, Run):
        facts = {"kind": "run"} | _of_run(what)
    elif isinstance(what, PackedRun):
        facts = {"kind": "packed", "checked": what.about.get("checked")} | _of_data(what.about, what.preprocessor())
    elif isinstance(what, packed.PackedModel | IntegerModel):
        facts = {"kind": "packed", "record": {}}
    else:
        facts = {"kind": "bottleneck", "record": {}} | _of_bottleneck(what)
    data, task = facts.get("data", ""), facts.get("task")
    title = name.partition("/")[2]
    metrics = facts.get("metrics") or {}
    tested = (metrics.get("exact") or metrics.get("smooth") or {}).get("test", {})
    results = [
        EvalResult(
            task_type=str(task), dataset_type=re.sub(r"[^\w.-]+", "-", data).strip("-") or "data", dataset_name=data,
            dataset_split="test", metric_type=metric, metric_value=round(float(value), 6),
        )
        for metric, value in tested.items() if isinstance(value, int | float)
    ]  # fmt: skip
    binary = ["binary-activations"] if facts.get("step", True) else []
    about = ModelCardData(
        library_name="htaf", license=license, tags=["htaf", *binary], pipeline_tag=task, eval_results=results or None,
        model_name=title,
    )  # fmt: skip
    own = {"name": name, "title": title, "license": license, "plain": lambda text: markdown_text(str(text))}
    own["number"] = lambda value: f"{value:.4g}" if isinstance(value, int | float) else "-"
    return str(ModelCard.from_template(about, str(TEMPLATE), yaml=about.to_yaml(), **own, **facts)) + "\n"


def _of_run(run: Run) -> dict[str, Any]:
    """What the template says of a run."""
    record = run.record
    model, weights = record["model"], record.get("weights") or {}
    network, values = _activations(model)
    facts = _of_data(record, run.preprocessor())
    if first := next((weights[entry] for entry in ("package", "url", "file") if weights.get(entry)), None):
        facts["facts"].append(
            ("first weights", f"{first}, {weights.get('licence') or 'of a licence that is not known'}")
        )
    kept = next((row for row in (record.get("heads") or {}).get("rows", ()) if row["kept"]), {})
    return facts | {
        "network": network,
        "values": values,
        "step": run.has_step,
        "own_smooth": run.has_own_smooth,
        "concepts": model.get("concepts"),
        "per_class": kept.get("target"),
        "beside": [words for entry, words in BESIDE.items() if model.get(entry)],
        "notes": told(from_record(record["notes"])),
    }


def _of_data(record: Mapping[str, Any], preprocessor: Any) -> dict[str, Any]:
    """What both say of their data and figures, and of what the network takes and gives."""
    from htaf.data.images import ImagePreprocessor
    from htaf.data.tabular import FRAME

    data = record.get("data") or {}
    name = str(data.get("name", "data"))
    name = "a data frame" if name == FRAME else name
    images = isinstance(preprocessor, ImagePreprocessor)
    facts = [("data", name), *((f"{part} rows", f"{count:,}") for part, count in (record.get("rows") or {}).items())]
    facts += [("positive class", record["positive"])] if "positive" in record else []
    if images:
        facts.append(("size", " x ".join(map(str, preprocessor.size))))
    else:
        facts.append(("target", preprocessor.target.name))
    return {
        "record": record,
        "data": name,
        "task": f"{'image' if images else 'tabular'}-{data.get('task') or 'classification'}",
        "images": images,
        "preprocessor": preprocessor,
        "facts": facts,
        "classes": preprocessor.classes if images else preprocessor.target.classes,
        "columns": [] if images else [column.name for column in preprocessor.columns if column.kind != "dropped"],
        "metrics": record.get("metrics"),
    }


def _of_bottleneck(model: ConceptBottleneck) -> dict[str, Any]:
    """What the template says of a bottleneck."""
    bits, features = model.bits_.directions.shape
    facts = [(f"{part} rows", f"{len(model.fitted_.part(part)):,}") for part in ("train", "validation")]
    return {"bits": bits, "features": features, "facts": facts, "classes": model.classes_.tolist()}


def _activations(model: Mapping[str, Any]) -> tuple[str, str]:
    """What a network is, with its activations, by a run's record; and which values these have."""
    step = model.get("activation") or {}
    levels, values = step.get("levels", 1), "-1 or 1" if step.get("bipolar") else "0 or 1"
    if levels > 1:
        values = f"one of {levels + 1} values"
    if model["kind"] == "icbm":
        return f"{'An implicit' if model.get('bottleneck') == 'implicit' else 'A'} concept bottleneck model", values
    network = NETWORKS.get(model["kind"], "A network")
    if step.get("method") == "relu":
        return f"{network} with ReLU", values
    return f"{network} with activations that are {values}", values
