"""Tables on the output."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from htaf._ground.console import say, terminal

Rows = Iterable[Sequence[object]]


def show(title: str, columns: Sequence[str], rows: Rows, *, left: Collection[str] | None = None) -> None:
    """A table under its title; None is shown as -, a float with four digits.

    Args:
        left: columns of words; all others are numbers, at the right. None: the first one.
    """
    console = terminal(highlight=False)
    from rich.table import Table

    table = Table()
    words = columns[:1] if left is None else left
    for column in columns:
        table.add_column(column, justify="left" if column in words else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(_shown, row))
    if title:
        say(title)  # a table's own would be folded to its width
    console.print(table)


def _shown(value: object) -> str:
    return "-" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)
