"""`htaf explore`: the concepts of a run as a page."""

from __future__ import annotations

from tyro.conf import OmitArgPrefixes

from htaf._ground.console import UsageError, print_json, say, say_notes
from htaf.cli.concepts import of_images, offering_parts
from htaf.cli.flags import CodesOf, DataDir, File, Folder, Json, RunDir, needs_source
from htaf.cli.methods import MethodOfRun, step_of_run
from htaf.concepts.explorer.shown import Shown
from htaf.data.notes import new_sentences


def explore(
    run: RunDir,
    *,
    out: Folder,
    codes: CodesOf = None,
    names: File = None,
    shown: OmitArgPrefixes[Shown] = Shown(),  # noqa: B008
    data_dir: DataDir = None,
    method: MethodOfRun = None,
    json: Json = False,
) -> None:
    """Write a page to look at concepts, check and rename them, and flip bits. It opens from disk, with no server.

    Args:
        out: Folder of the page: a new one, or that of an earlier page.
        codes: Codes of this run, the bits of its images; none: DIR-codes, made or finished where needed.
        names: Names, .json: from htaf concepts name, exported by the page, or your own; none: numbers alone.
    """
    if shown.images < 1 or shown.detailed < 0:
        raise UsageError(f"expected --images >= 1 and --detailed >= 0, got {shown.images} and {shown.detailed}")
    from htaf.concepts.explorer.run_page import CodesNeededError, build_run_page
    from htaf.training.runs import open_run

    opened = of_images(open_run(run, method=step_of_run(method)))
    try:
        with needs_source("give --codes"), offering_parts(shown.part):
            made = build_run_page(opened, out, codes=codes, names=names, shown=shown, data_dir=data_dir, progress=True)
    except CodesNeededError as error:
        raise UsageError(f"{error} with --codes") from None
    say_notes(new_sentences(made["notes"], opened.record["notes"]))
    print_json(made)
    if not json:
        size = f"{made['bytes'] / 1e6:.1f} MB"
        named = f"{made['concepts']} concepts ({made['named']} named, {made['verified']} of them verified)"
        say(f"{made['images']:,} {made['part']} images, {named}, {made['classes']} classes, {size}")
        say(f"page: {made['page']} (open it in a browser)")
