"""`htaf explore`: the concepts of a run as a page."""

from __future__ import annotations

from tyro.conf import OmitArgPrefixes

from htaf._console import UsageError, print_json, say, say_notes
from htaf.cli.concepts import of_images, offering_parts
from htaf.cli.flags import CodesOf, DataDir, File, Folder, Json, RunDir, needs_source
from htaf.cli.methods import MethodOfRun, step_of_run
from htaf.data.notes import untold
from htaf.explorer.shown import Shown


def explore(
    run: RunDir,
    *,
    out: Folder,
    codes: CodesOf = None,
    names: File = None,
    beside: CodesOf = None,
    beside_names: File = None,
    shown: OmitArgPrefixes[Shown] = Shown(),  # noqa: B008
    data_dir: DataDir = None,
    method: MethodOfRun = None,
    json: Json = False,
) -> None:
    """Write a page to look at concepts, check and rename them, and flip bits. It opens from disk, with no server.

    Args:
        out: Folder of the page: a new one, or that of an earlier page.
        codes: Codes of this run, the bits of its images; none: DIR-codes, made or finished where needed.
        names: Names, .json or .csv: from htaf concepts name, exported by the page, or your own; none: numbers alone.
        beside: Codes of another run on the same images, shown side by side.
        beside_names: Names of the other run's concepts; none: numbers alone.
    """
    if shown.images < 1 or not 16 <= shown.thumbnail <= 1024:
        got = f"{shown.images} and {shown.thumbnail}"
        raise UsageError(f"expected --images >= 1 and --thumbnail in 16 to 1024, got {got}")
    if shown.originals < 0 or shown.maps < 0:
        raise UsageError(f"expected --originals >= 0 and --maps >= 0, got {shown.originals} and {shown.maps}")
    from htaf.explorer.run_page import CodesNeededError, build_run_page
    from htaf.runs import open_run

    opened = of_images(open_run(run, method=step_of_run(method)))
    try:
        with needs_source("give --codes"), offering_parts(shown.part):
            made = build_run_page(
                opened,
                out,
                codes=codes,
                names=names,
                beside=beside,
                beside_names=beside_names,
                shown=shown,
                data_dir=data_dir,
                progress=True,
            )
    except CodesNeededError as error:
        raise UsageError(f"{error} with --codes") from None
    say_notes(untold(made["notes"], opened.record["notes"]))
    print_json(made)
    if not json:
        size = f"{made['bytes'] / 1e6:.1f} MB"
        named = f"{made['concepts']} concepts ({made['named']} named, {made['verified']} of them verified)"
        say(f"{made['images']:,} {made['part']} images, {named}, {made['classes']} classes, {size}")
        say(f"page: {made['page']} (open it in a browser)")
