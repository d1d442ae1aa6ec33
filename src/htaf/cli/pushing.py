"""`htaf push`: what htaf wrote, shared at the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from htaf._ground.console import print_json, say
from htaf.cli.flags import Json
from htaf.cli.methods import MethodOfRun, step_of_run


def push(
    run: Annotated[Positional[Path], arg(metavar="RUN")],
    name: Annotated[Positional[str], arg(metavar="OWNER/NAME")],
    *,
    private: bool = False,
    revision: Annotated[str | None, arg(metavar="BRANCH")] = None,
    license: Annotated[str | None, arg(metavar="NAME")] = None,
    method: MethodOfRun = None,
    json: Json = False,
) -> None:
    """Share a run, a packed file or a language model at the Hugging Face hub, with a card. `hf auth login` first.

    Paths of this machine, curves, reports and images stay here. What was shared by this name before is replaced.

    Args:
        run: Folder of a run, of a language model or of ConceptBottleneck.save; or a file of htaf pack.
        name: At the hub; made where it is not there.
        private: Only its owner, and whom the owner admits, can read it.
        revision: Branch; none: main.
        license: Licence that the card gives, such as apache-2.0; none: the card gives none.
    """
    from htaf.sharing import push_to_hub
    from htaf.training.runs import open_run

    what = run if method is None else open_run(run, method=step_of_run(method))
    commit = push_to_hub(what, name, private=private, revision=revision, license=license)
    if json:
        return print_json({"name": name, "commit": commit, "private": private, "revision": revision})
    return say(f"{name}, commit {commit[:12]}: htaf.load({name!r}) opens it")
