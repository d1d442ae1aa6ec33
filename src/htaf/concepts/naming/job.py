"""Naming the concepts of a folder of codes, kept in a file, so that an interrupted job can be continued."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from htaf.concepts.codes import Codes, ConceptError, codes_key
from htaf.concepts.naming.by_model import (
    Estimate,
    NamingPlan,
    check_names,
    estimate,
    name_by_model,
    naming_plan,
)
from htaf.concepts.naming.checks import NamingSettings
from htaf.concepts.naming.files import NO_REPLY, NameEntry, kept_names, read_names
from htaf.llm import BatchClient, Client, ModelError, ServerClient


@dataclass(frozen=True, eq=False)
class NamingJob:
    """Names of concepts to be found by a language model, or given names to be checked by it.

    Attributes:
        plan: what is asked. client: who is asked.
        only: which concepts; None: as `name_by_model` and `check_names` choose.
        given: names to check; None: names are to be found.
        known: entries of an interrupted job.
        out: where the names are kept; None: nowhere.
        codes: `htaf.concepts.codes.codes_key` of the codes.
    """

    plan: NamingPlan
    client: Client
    only: tuple[int, ...] | None
    given: tuple[NameEntry, ...] | None
    known: tuple[NameEntry, ...]
    out: Path | None
    codes: str

    def estimate(self) -> Estimate:
        """How many requests and tokens the job will need; see `htaf.concepts.naming.estimate`."""
        return estimate(self.plan, self.client, names=self.given, only=self.only, known=self.known)

    def run(self, *, parallel: int = 4, progress: Callable[[int, int], None] | None = None) -> list[NameEntry]:
        """Ask for all that is not known yet; whatever is finished is in the file, however the job ends.

        Args:
            parallel, progress: as `name_by_model` takes them.
        Returns:
            the entries, ascending.
        Raises:
            ConceptError, ModelError: as `name_by_model`. OSError: the file cannot be written.
        """
        with kept_names(self.out, self.codes) as save:
            options: dict[str, Any] = {"parallel": parallel, "save": save, "progress": progress}
            options |= {"only": self.only, "known": self.known}
            if self.given is None:
                names = name_by_model(self.plan, self.client, **options)
            else:
                names = check_names(self.plan, self.client, self.given, **options)
            save(names)
        return names

    def unused_replies(self, names: Sequence[Mapping[str, Any]]) -> list[str]:
        """Notes on the replies of each file that no request wanted, after a job.

        Args:
            names: as `run` returned them.
        Raises:
            ModelError: no reply at all could be used, or none of the files fits a prompt.
        """

        def meet() -> None:
            for only in (None, self.only):  # replies of concepts that were not to be asked for now fit too
                estimate(self.plan, self.client, names=self.given, only=only)

        return unused_replies(self.client, names, meet)


def unused_replies(client: Client, names: Sequence[Mapping[str, Any]], meet: Callable[[], None]) -> list[str]:
    """Notes on the replies of each file that no request wanted, after a job.

    Args:
        names: as the job returned them.
        meet: looks for the replies of all requests of the job.
    Raises:
        ModelError: no reply at all could be used, or none of the files fits a prompt.
    """
    unusable, used = False, True
    if isinstance(client, ServerClient):
        unusable, used = client.usage.malformed > 0, bool(client.fresh or client.usage.cached)
    elif isinstance(client, BatchClient):
        unusable, used = bool(client.unusable), bool(client.used)
    if unusable and not used:
        why = next((entry["reason"] for entry in names if (entry["reason"] or "").startswith(NO_REPLY)), NO_REPLY)
        raise ModelError(f"{client.model}: this model does not answer in the form that is asked for ({why})")
    if not isinstance(client, BatchClient) or not client.files:
        return []
    listed = ", ".join(client.files)
    if not len(client):
        raise ModelError(f"{listed}: expected replies, got none that can be read")
    meet()
    if not client.met:
        raise ModelError(
            f"{listed}: none of {len(client):,} replies fits a prompt here: another model, other settings, or "
            "earlier replies that are not given too?"
        )
    return [
        f"{count:,} {'reply' if count == 1 else 'replies'} in {file} {'fits' if count == 1 else 'fit'} no prompt "
        "here: another model or other settings?"
        for file, count in client.unmet().items()
    ]


def naming_job(
    codes: Codes,
    client: Client,
    settings: NamingSettings | None = None,
    *,
    candidates: Sequence[str] = (),
    given: Path | None = None,
    only: Sequence[int] = (),
    top: int | None = None,
    out: Path | None = None,
    refresh: bool = False,
) -> NamingJob:
    """A job that continues what an earlier one left in `out`.

    Args:
        codes: whose concepts are named. client: who is asked. settings: of rounds and checks.
        candidates: what names are chosen from; none: the model's own words.
        given: a file of names to be checked, in place of finding names.
        only: concepts, by number; empty: all.
        top: in place of `only`, the most important ones.
        out: .json, or a .csv that is not there yet.
        refresh: name anew what the file holds of these concepts; until then it stays there.
    Raises:
        ConceptError: no such concept; `given` or `out` cannot be read or are of other codes; names in `out` would be
            lost.
    """
    key = codes_key(codes)
    names = None if given is None else tuple(read_names(given, codes.concepts, codes=key))
    plan = naming_plan(codes, candidates=candidates, settings=settings)
    wanted = tuple(only) or (None if top is None else plan.order[:top])
    known = [] if out is None else earlier_names(out, plan, client, checked=given, codes=key)
    if refresh:
        anew = set(plan.chosen(wanted))
        known = [entry | {"settings": None} if entry["concept"] in anew else entry for entry in known]
    return NamingJob(plan, client, wanted, names, tuple(known), out, key)


def earlier_names(
    path: Path, plan: NamingPlan, client: Client, *, checked: Path | None = None, codes: str | None = None
) -> list[NameEntry]:
    """What an earlier call left in the file that is to be written: the `known` of `name_by_model`.

    Args:
        path: .json, or a .csv that is not there yet.
        plan, client: of this call.
        checked: the file whose names are checked, where that is what this call does.
        codes: as `htaf.concepts.naming.read_names` takes it.
    Raises:
        ConceptError: the file holds names that this call would not make, and that would be lost; is a table, which does
            not say what its names rest on; or is no such file.
    """
    if not path.exists():
        return []
    if path.suffix.lower() == ".csv":
        raise ConceptError(
            f"{path}: expected a new .csv file, got one that exists: a .csv cannot be continued, choose a .json or "
            "another name"
        )
    found = read_names(path, len(plan.order), codes=codes)
    if checked is not None:
        if path.resolve() != checked.resolve() and any(e["name"] and not e.get("checked_by") for e in found):
            raise ConceptError(
                f"{path}: expected a new file or one of checked names, got other names, which would be lost: choose "
                "another --out"
            )
        return [entry for entry in found if entry.get("checked_by")]
    for entry in found:
        rests = entry.get("settings")
        ours = entry["source"] == "model" and not entry.get("checked_by")
        if not ours or (rests and rests != plan.fingerprint(plan.case(entry["concept"]), client)):
            raise ConceptError(
                f"{path}: expected a new file or names of the same settings, got concept {entry['concept']} named "
                "otherwise (by hand, with another model, server, settings, codes or version), which would be lost: "
                "choose another --out"
            )
    return found
