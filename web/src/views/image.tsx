import type { JSX } from "preact";
import { useCallback, useMemo } from "preact/hooks";
import { announce } from "../announce.ts";
import { bitOf, flipped, nearest } from "../bits.ts";
import { bitsOf, type Explorer } from "../explorer.ts";
import { argmax, logits, softmax } from "../head.ts";
import { Term } from "../glossary.tsx";
import { ClassName, classText, conceptText } from "../parts.tsx";
import { Grid, imageLink, Original, Thumb, Verdict } from "../pictures.tsx";
import { firstTwo } from "../reasons.ts";
import { setQuery, useQuery } from "../route.ts";
import { Rest, Text } from "../text.tsx";
import { Needs } from "../waiting.tsx";
import { item, percent, plural } from "../words.ts";
import { Fact } from "./concept.tsx";
import { CounterfactualView } from "./counterfactual.tsx";
import { Decision } from "./decision.tsx";
import { ImageConcepts } from "./image_concepts.tsx";
import { ImageWhere, NoMaps } from "./image_where.tsx";
import { Predictions } from "./predictions.tsx";

const NEAREST = 10;

/** What an image's view is about, with the flips of the visitor. */
export interface WhatIf {
  row: number;
  given: Uint8Array; // the image's bits
  flips: ReadonlySet<number>;
  bits: Uint8Array; // after the flips
  logits: Float64Array;
  softmax: Float64Array;
  before: Float64Array; // softmax of the given bits
  now: number; // the predicted class
  chosen: number; // the class whose contributions are shown
  than: number | null; // the class that it is compared with
}

const numbers = (text: string, below: number): number[] =>
  [...new Set(text.split(",").filter((word) => /^\d+$/.test(word)).map(Number))].filter((n) => n < below).sort((a, b) => a - b);

function useWhatIf(explorer: Explorer, row: number): WhatIf {
  const { flip = "", class: of = "", than: other = "" } = useQuery();
  const first = useMemo(() => {
    const given = bitsOf(explorer, row);
    const values = logits(explorer.head, given);
    return { given, before: softmax(values), was: argmax(values) };
  }, [explorer, row]);
  const after = useMemo(() => {
    const flips = new Set(numbers(flip, explorer.page.concepts));
    const bits = flipped(first.given, flips);
    const values = logits(explorer.head, bits);
    return { flips, bits, logits: values, softmax: softmax(values), now: argmax(values) };
  }, [explorer, first, flip]);
  const chosen = numbers(of, explorer.head.classes)[0] ?? first.was;
  const than = numbers(other, explorer.head.classes)[0] ?? null;
  return { row, given: first.given, before: first.before, chosen, than: than === chosen ? null : than, ...after };
}

export function ImageView({ explorer, row }: { explorer: Explorer; row: number }): JSX.Element {
  const view = useWhatIf(explorer, row);
  const id = explorer.ids[row]!;
  const change = useCallback(
    (flips: Iterable<number>, said: string) => {
      const wanted = [...flips].sort((a, b) => a - b);
      setQuery({ flip: wanted.join(",") });
      const bits = flipped(bitsOf(explorer, row), wanted);
      const values = logits(explorer.head, bits);
      const now = argmax(values);
      announce(`${said} Predicted ${classText(explorer, now)}, ${percent(softmax(values)[now]!)}. ${plural(wanted.length, "bit")} changed.`);
    },
    [explorer, row],
  );
  const toggle = useCallback(
    (concept: number) => {
      const next = new Set(view.flips);
      if (!next.delete(concept)) next.add(concept);
      change(next, `${conceptText(explorer, concept)} ${bitOf(view.bits, concept) ? "off" : "on"}.`);
    },
    [explorer, view, change],
  );
  const reset = (): void => change([], "All bits as they were.");
  return (
    <>
      <nav class="beside" aria-label={item("Neighbouring images")}>
        {row > 0 ? <a href={imageLink(explorer, row - 1)}>← Previous {item("image")}</a> : <span />}
        <a href="#/images">All {item("images")}</a>
        {row < explorer.page.images - 1 ? <a href={imageLink(explorer, row + 1)}>Next {item("image")} →</a> : <span />}
      </nav>
      <header class="view-head">
        <p class="kicker">{item("Image")}</p>
        <h1 tabIndex={-1}>
          <Heading explorer={explorer} row={row} />
        </h1>
        <p class="path muted">
          <Text value={id} limit={100} />
        </p>
        <Rest value={id} limit={100} />
      </header>
      {explorer.head.classes > 1 && <Why explorer={explorer} view={view} />}
      {explorer.mapped.has(row) ? <ImageWhere key={`where${row}`} explorer={explorer} view={view} /> : explorer.mapped.size > 0 && <NoMaps explorer={explorer} />}
      <div class="columns image-view">
        <div class="aside">
          <div class="portrait">
            {explorer.head.classes === 1 && !explorer.mapped.has(row) && <Original key={row} explorer={explorer} row={row} size={320} />}
            <Facts explorer={explorer} row={row} />
          </div>
          <Predictions explorer={explorer} view={view} reset={reset} />
        </div>
        <div>
          <CounterfactualView key={`flips${row}`} explorer={explorer} view={view} apply={change} />
          <ImageConcepts key={`bits${row}`} explorer={explorer} view={view} toggle={toggle} />
        </div>
      </div>
      <section aria-labelledby="nearest">
        <h2 id="nearest">
          Nearest {item("images")} <Term of="nearest" />
        </h2>
        <Needs explorer={explorer} of={["bits"]}>
          {() => <Nearest explorer={explorer} view={view} />}
        </Needs>
      </section>
      {view.flips.size > 0 && (
        <div class="now-bar narrow-only">
          <p>
            <strong>{classText(explorer, view.now, 24)}</strong> {percent(view.softmax[view.now]!, 1)}
            <span class="muted"> {plural(view.flips.size, "bit")} changed</span>
          </p>
          <button type="button" onClick={reset}>
            Reset
          </button>
        </div>
      )}
    </>
  );
}

/** Why this class and not the second one, or the one to compare with. */
function Why({ explorer, view }: { explorer: Explorer; view: WhatIf }): JSX.Element {
  const [first, second] = firstTwo(view.logits);
  const than = view.than !== null && view.than !== first ? view.than : second;
  return (
    <section aria-labelledby="why" class="card decision">
      <h2 id="why">
        Why {classText(explorer, first, 40)}? <Term of="contribution" />
      </h2>
      <div class="decision-parts">
        <div class="decision-image">
          <Original key={view.row} explorer={explorer} row={view.row} size={200} />
        </div>
        <div>
          <Decision
            explorer={explorer}
            row={view.row}
            bits={view.bits}
            k={first}
            than={than}
            subject={view.flips.size > 0 ? item("With these flips the image is taken for") : item("This image is taken for")}
          />
        </div>
      </div>
    </section>
  );
}

/** What the image is, and what it is taken for where that is something else. */
function Heading({ explorer, row }: { explorer: Explorer; row: number }): JSX.Element {
  const [label, guess] = [explorer.labels[row]!, explorer.exact[row]!];
  const named = (k: number): JSX.Element => <Text value={explorer.page.classes[k] ?? "unknown"} limit={60} />;
  if (label < 0) return <>Taken for {named(guess)}</>;
  return (
    <>
      {named(label)}
      {label !== guess && <>, taken for {named(guess)}</>}
    </>
  );
}

function Facts({ explorer, row }: { explorer: Explorer; row: number }): JSX.Element {
  return (
    <dl class="facts">
      <Fact label="Class" value={<ClassName explorer={explorer} k={explorer.labels[row]!} limit={40} />} />
      <Fact label="Predicted, exact bits" term="exact" value={<ClassName explorer={explorer} k={explorer.exact[row]!} limit={40} />} />
      {explorer.smooth[row]! >= 0 && <Fact label="Predicted, smooth" term="smooth" value={<ClassName explorer={explorer} k={explorer.smooth[row]!} limit={40} />} />}
    </dl>
  );
}

function Nearest({ explorer, view }: { explorer: Explorer; view: WhatIf }): JSX.Element {
  const found = useMemo(
    () => nearest(view.bits, explorer.bits, explorer.page.images, NEAREST, view.row),
    [explorer, view.bits, view.row],
  );
  return (
    <>
      <p class="muted">
        Those whose concepts differ in the fewest bits from {view.flips.size > 0 ? item("this image's as flipped") : item("this image's")}, of all on this page.
      </p>
      {found.length === 0 && <p class="empty">There is no other {item("image")}.</p>}
      <Grid explorer={explorer}>
        {found.map(([row, far]) => (
          <Thumb key={row} explorer={explorer} row={row}>
            <span class="far">{far === 0 ? "same bits" : plural(far, "bit")}</span>
            <Verdict explorer={explorer} row={row} />
          </Thumb>
        ))}
      </Grid>
    </>
  );
}
