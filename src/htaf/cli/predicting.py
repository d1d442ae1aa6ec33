"""`htaf predict`: predictions of a run or of a packed file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from htaf._console import UsageError, print_csv, print_json, say, say_notes, say_unread
from htaf._files import check_output, write_atomic
from htaf.cli.flags import Json
from htaf.cli.methods import MethodOfRun


def predict(
    run: Annotated[Positional[Path], arg(help="Run folder, or a file of htaf pack.", metavar="RUN")],
    inputs: Annotated[
        Positional[tuple[Path, ...]],
        arg(
            help="A CSV or Parquet file with the raw columns; for a run on images, files or a folder.",
            metavar="INPUT",
            help_behavior_hint="(required)",
        ),
    ],
    *,
    out: Annotated[
        Path | None,
        arg(help="Write a .csv or .parquet file.", metavar="FILE", help_behavior_hint="(default: print CSV)"),
    ] = None,
    smooth: Annotated[bool, arg(help="Use the smooth network instead of the exact one.")] = False,
    method: MethodOfRun = None,
    strict: Annotated[bool, arg(help="Images: stop at the first file that cannot be read.")] = False,
    json: Json = False,
) -> None:
    """Predict with the exact network: a column `prediction`, and a probability per class.

    Images that cannot be read keep their row, with the reason in a column `error`; the exit code is then 3.
    """
    if out is not None and out.suffix not in (".csv", ".parquet"):
        raise UsageError(f"--out must end in .csv or .parquet, got {out.name}")
    if not inputs:
        raise UsageError("expected INPUT: a CSV or Parquet file, or for a run on images files or a folder; got none")
    if out is not None:
        check_output(out, [run, *inputs])
    from htaf.cli.packing import predictors

    of_images, of_rows, takes_images = predictors(run, exact=not smooth, method=method)
    unread: dict[str, str] = {}
    if takes_images:
        from htaf.data.image_reading import image_files
        from htaf.data.reading import DataError

        frame = of_images(image_files(inputs), strict=strict).reset_index()
        unread = {} if strict else frame.set_index("image")["error"].dropna().to_dict()
        if unread and len(unread) == len(frame):
            first = next(iter(unread))
            raise DataError(f"none of {len(frame)} files can be read as an image: {first}: {unread[first]}")
    else:
        from htaf.data.reading import read_frame

        if len(inputs) != 1:
            raise UsageError(f"expected one CSV or Parquet file for a run on a table, got {len(inputs)}")
        rows, notes = read_frame(inputs[0])
        frame, seen = of_rows(rows)
        say_notes([*notes, *seen])
    if out is not None:
        data: Any = frame.to_csv(index=False) if out.suffix == ".csv" else frame.to_parquet(index=False)
        write_atomic(out, data)
    if json:
        print_json(frame.astype(object).where(frame.notna(), None).to_dict(orient="records"))
    elif out is None:
        print_csv(frame.to_csv(index=False))
    else:
        say(f"{len(frame)} rows: {out}")
    say_unread([f"{file}: {reason}" for file, reason in unread.items()], len(frame))
