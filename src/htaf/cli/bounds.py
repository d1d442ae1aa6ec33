"""`htaf theory`: the exact bounds beside the paper's table."""

from __future__ import annotations

from typing import Annotated, Any

from tyro.conf import arg

from htaf import theory as bounds
from htaf._console import UsageError, print_json, say
from htaf.cli.flags import Json
from htaf.cli.tables import show


def theory(
    *,
    eps: float = 0.1,
    alpha1: Annotated[tuple[float, ...], arg(metavar="ALPHA1 ...", help_behavior_hint="(default: the paper's)")] = (),
    json: Json = False,
) -> None:
    """Print the exact bounds beside the paper's table, and what its six pairs achieve.

    Args:
        eps: Distance from the step that the bounds guarantee for |x| >= eps.
        alpha1: Rows of the table.
    """
    try:
        rows = bounds.bounds_table(eps, alpha1 or tuple(bounds.PAPER_BOUNDS))
        limit, least = bounds.product_limit(eps), bounds.alpha1_lower_bound(eps)
    except ValueError as error:
        raise UsageError(str(error)) from None
    achieved: list[dict[str, Any]] = [
        {
            "alpha0": a0,
            "alpha1": a1,
            "achieved_eps": bounds.achieved_eps(a0, a1),
            "slope_at_zero": bounds.slope_at_zero(a0, a1),
            "tail_constant": bounds.tail_constant(a0, a1),
            "gradient_share": bounds.gradient_share(a0, a1),
        }
        for a0, a1 in bounds.PAPER_PAIRS
    ]
    if json:
        return print_json(
            {"eps": eps, "alpha1_lower_bound": least, "product_limit": limit, "bounds": rows, "pairs": achieved}
        )
    rows_shown = [
        (
            f"{row['alpha1']:g}",
            f"{row['alpha0']:.6f}",
            row["rounded_up"],
            row["paper"] or "",
            "" if row["paper"] is None else "yes" if row["paper"] == row["rounded_up"] else "NO",
            row["product"],
        )
        for row in rows
    ]
    columns = ("alpha1", "exact alpha0", "rounded up", "paper", "equal", "alpha0 alpha1")
    show(f"Least alpha0 at eps = {eps:g} (alpha1 > {least:.4f})", columns, rows_shown, left=())
    say(f"alpha0 alpha1 tends to {limit:.4f} as alpha1 grows.\n")
    pairs = [
        (
            f"{row['alpha0']:g}",
            f"{row['alpha1']:g}",
            f"{row['achieved_eps']:.5f}",
            f"{row['slope_at_zero']:.3f}",
            f"{row['tail_constant']:.3g}",
            f"{row['gradient_share']:.0%}",
        )
        for row in achieved
    ]
    share = "N(0,1) inputs with gradient > 1e-6"
    columns = ("alpha0", "alpha1", "achieved eps", "slope at 0", "tail constant", share)
    return show("The paper's pairs (its bound asks for eps = 0.1)", columns, pairs, left=())
