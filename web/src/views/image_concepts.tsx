import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { bitOf } from "../bits.ts";
import { drawsOn, weightOf, type Explorer } from "../explorer.ts";
import { Term } from "../glossary.tsx";
import { namingOf, useEdits } from "../names.ts";
import { Choice, classText, ConceptName, conceptText, SearchField, Signed, UsedOnly } from "../parts.tsx";
import { HaveIt } from "../pictures.tsx";
import { reasonsFor } from "../reasons.ts";
import { setQuery, useQuery } from "../route.ts";
import { count, item, plural, signed } from "../words.ts";
import type { WhatIf } from "./image.tsx";

const SIZE = 24;
const SORTS: [string, string][] = [
  ["", "contribution, highest first"],
  ["lowest", "contribution, lowest first"],
  ["effect", "what a flip would add"],
  ["number", "number"],
];
const SHOW: [string, string][] = [
  ["", "all"],
  ["on", "on"],
  ["off", "off"],
  ["changed", "changed"],
];

/** What a bit weighs for the logit of the chosen class, or for how far that is ahead of the other one. */
const weigh = (explorer: Explorer, { chosen, than }: { chosen: number; than: number | null }, concept: number): number =>
  weightOf(explorer, chosen, concept) - (than === null ? 0 : weightOf(explorer, than, concept));

/** The bits as switches. Their order is that of the image as it is, so that a flip moves nothing. */
export function ImageConcepts({ explorer, view, toggle }: { explorer: Explorer; view: WhatIf; toggle: (concept: number) => void }): JSX.Element {
  const now = useEdits();
  const { bits: show = "", order = "", unused = "" } = useQuery();
  const [words, setWords] = useState("");
  const [shown, setShown] = useState(SIZE);
  const { given, chosen, than } = view;
  const classes = useMemo(
    () => explorer.page.classes.map((_, k): [string, string] => [String(k), classText(explorer, k, 50)]),
    [explorer],
  );
  const sorted = useMemo(() => {
    const weight = (concept: number): number => weigh(explorer, { chosen, than }, concept);
    const contribution = (concept: number): number => (bitOf(given, concept) - explorer.concepts[concept]!.rate) * weight(concept);
    const effect = (concept: number): number => (bitOf(given, concept) ? -weight(concept) : weight(concept));
    const all = explorer.concepts.map((_, concept) => concept);
    if (order === "number") return all;
    if (order === "effect") return all.sort((a, b) => effect(b) - effect(a) || a - b);
    const sign = order === "lowest" ? -1 : 1;
    return all.sort((a, b) => sign * (contribution(b) - contribution(a)) || a - b);
  }, [explorer, given, chosen, than, order]);
  const most = useMemo(
    () => sorted.reduce((top, concept) => Math.max(top, Math.abs(weigh(explorer, { chosen, than }, concept))), 0),
    [explorer, sorted, chosen, than],
  );
  const { start, ahead } = reasonsFor(explorer, view.bits, chosen, than);
  const wanted = words.trim().toLowerCase();
  const drawn = sorted.filter((concept) => drawsOn(explorer, concept, chosen, than));
  const found = sorted.filter((concept) => {
    if (!unused && !drawsOn(explorer, concept, chosen, than) && !view.flips.has(concept)) return false;
    const bit = bitOf(given, concept) === 1;
    if ((show === "on" && !bit) || (show === "off" && bit) || (show === "changed" && !view.flips.has(concept))) return false;
    if (!wanted) return true;
    return String(concept) === wanted || (namingOf(explorer, concept, now).name ?? "").toLowerCase().includes(wanted);
  });
  return (
    <section aria-labelledby="bits">
      <h2 id="bits">Concepts of this {item("image")}</h2>
      <UsedOnly used={drawn.length} total={sorted.length} of={than === null ? `for ${classText(explorer, chosen, 40)}` : `to tell ${classText(explorer, chosen, 40)} from ${classText(explorer, than, 40)}`} />
      <p class="muted">Press a switch to flip a bit. What it <Term of="adds">adds</Term> is counted from an <Term of="average image">average {item("image")}</Term>, so what this one lacks counts too.</p>
      <div class="tools">
        <Choice label="Contributions to" value={String(chosen)} options={classes} onChange={(value) => setQuery({ class: value })} />
        <Choice
          label="Rather than"
          value={than === null ? "" : String(than)}
          options={[["", "– (its own logit)"], ...classes]}
          onChange={(value) => setQuery({ than: value })}
        />
        <Choice label="Sort by" value={order} options={SORTS} onChange={(value) => setQuery({ order: value })} />
        <Choice label="Show" value={show} options={SHOW} onChange={(value) => setQuery({ bits: value })} />
        <SearchField label="Search" hint="number or name" value={words} onInput={setWords} />
        <p class="found" role="status">
          {plural(found.length, "concept")}
        </p>
      </div>
      {found.length === 0 ? (
        <p class="empty">No concept matches.</p>
      ) : (
        <table class="list bits">
          <caption class="hidden">Concepts of this {item("image")} and what they add to the logit of the chosen class</caption>
          <thead>
            <tr>
              <th scope="col">
                <Term of="bit">Bit</Term>
              </th>
              <th scope="col">Concept</th>
              <th scope="col" class="num">
                <Term of="adds">Adds</Term>
              </th>
              <th scope="col" class="num wide-only">
                A <Term of="flip">flip</Term> adds
              </th>
            </tr>
          </thead>
          <tbody>
            {found.slice(0, shown).map((concept) => (
              <Bit key={concept} explorer={explorer} view={view} concept={concept} most={most} toggle={toggle} />
            ))}
          </tbody>
          <tfoot>
            <Total name={item(than === null ? "An average image: its logit" : "An average image: ahead by")} value={start} />
            <Total name={item(than === null ? "This image: its logit, the sum of all" : "This image: ahead by, the sum of all")} value={ahead} />
          </tfoot>
        </table>
      )}
      {found.length > shown && (
        <p class="actions">
          <button type="button" onClick={() => setShown(shown + 100)}>
            {count(Math.min(100, found.length - shown))} more concepts
          </button>
        </p>
      )}
    </section>
  );
}

function Total({ name, value }: { name: string; value: number }): JSX.Element {
  return (
    <tr>
      <td />
      <th scope="row">{name}</th>
      <td class="num">{signed(value)}</td>
      <td class="wide-only" />
    </tr>
  );
}

interface BitProps {
  explorer: Explorer;
  view: WhatIf;
  concept: number;
  most: number;
  toggle: (concept: number) => void;
}

function Bit({ explorer, view, concept, most, toggle }: BitProps): JSX.Element {
  const on = bitOf(view.bits, concept) === 1;
  const changed = view.flips.has(concept);
  const weight = weigh(explorer, view, concept);
  return (
    <tr class={changed ? "changed" : undefined} data-concept={concept}>
      <td>
        <button type="button" role="switch" class="switch" aria-checked={on} aria-label={conceptText(explorer, concept)} onClick={() => toggle(concept)} />
      </td>
      <th scope="row">
        <ConceptName explorer={explorer} concept={concept} limit={48} />
        {changed && <span class="tag">changed</span>}
        <HaveIt explorer={explorer} row={view.row} concept={concept} on={on} />
      </th>
      <td>
        <Signed value={(Number(on) - explorer.concepts[concept]!.rate) * weight} most={most} />
      </td>
      <td class="wide-only">
        <Signed value={on ? -weight : weight} most={most} />
      </td>
    </tr>
  );
}
