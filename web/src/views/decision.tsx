import type { ComponentChildren, JSX } from "preact";
import { useMemo } from "preact/hooks";
import { bitOf } from "../bits.ts";
import { usedConcepts, type Explorer } from "../explorer.ts";
import { Term } from "../glossary.tsx";
import { namingOf, useEdits } from "../names.ts";
import { ClassName, classText, conceptLink, ConceptName } from "../parts.tsx";
import { HaveIt, isShown } from "../pictures.tsx";
import { reasonsFor, type Reason } from "../reasons.ts";
import { Text } from "../text.tsx";
import { decimal, item, plural, signed } from "../words.ts";

const BARS = 8;
const ALL = 12; // bars, where there are no more
const FOR = 3;
const AGAINST = 2;
const LEVEL = 1e-4; // of logits

interface DecisionProps {
  explorer: Explorer;
  row: number;
  bits: Uint8Array;
  k: number;
  than: number;
  subject: string; // "This image is taken for"
}

/** A decision in a sentence, then as a waterfall. */
export function Decision({ explorer, row, bits, k, than, subject }: DecisionProps): JSX.Element {
  const { start, ahead, all } = useMemo(() => reasonsFor(explorer, bits, k, than), [explorer, bits, k, than]);
  const pro = all.filter(({ adds }) => adds > 0).slice(0, FOR);
  const bars = all.length <= ALL ? ALL : BARS;
  const contra = all.filter(({ adds }) => adds < 0).slice(0, AGAINST);
  return (
    <>
      <p class="sentence">
        {subject} <ClassName explorer={explorer} k={k} limit={40} /> rather than <ClassName explorer={explorer} k={than} limit={40} />
        {pro.length > 0 && <>: {said(explorer, pro)}</>}.{contra.length > 0 && <> Against it: {said(explorer, contra)}.</>}
        <Others explorer={explorer} k={k} start={start} ahead={ahead} all={all} named={[...pro, ...contra]} few={all.length <= bars} />
        {Math.abs(ahead) < LEVEL && " The two classes are level: rounding decides."}
        {!usedConcepts(explorer).some((concept) => bitOf(bits, concept)) && " It has none of the concepts that a class draws on: all that speaks here is what it lacks."}
      </p>
      {isShown(explorer) && (
        <p class="muted have-said">Beside each concept: other {item("images")} that have it{explorer.strongest ? " most strongly" : ", drawn at random"}, also where this one lacks it.</p>
      )}
      <Waterfall explorer={explorer} row={row} k={k} start={start} ahead={ahead} shown={all.slice(0, bars)} others={all.slice(bars)} />
    </>
  );
}

interface OthersProps {
  explorer: Explorer;
  k: number;
  start: number;
  ahead: number;
  all: Reason[];
  named: Reason[];
  few: boolean; // each of them has a bar
}

/** What the named concepts leave open, where that is more than half of how far the class is ahead, or more than they add. */
function Others({ explorer, k, start, ahead, all, named, few }: OthersProps): JSX.Element | null {
  const told = named.reduce((sum, { adds }) => sum + adds, 0);
  const rest = ahead - start - told;
  const others = all.length - named.length;
  if (told >= Math.max(ahead / 2, rest) || others === 0) return null;
  if (few) return <span class="others">{` The other ${plural(others, "concept")} below ${others === 1 ? "adds" : "add"} ${signed(rest, 1)}.`}</span>;
  return (
    <span class="others">
      {" "}
      The rest ({plural(others, "concept")}) adds {signed(rest, 1)}
      {start > rest && `, and for an average ${item("image")} ${classText(explorer, k, 40)} is ahead by ${signed(start, 1)} already`}: many concepts decide this together.
    </span>
  );
}

function said(explorer: Explorer, reasons: Reason[]): ComponentChildren {
  return reasons.map((reason, place) => (
    <span key={reason.concept}>
      {place > 0 && (place === reasons.length - 1 ? " and " : ", ")}
      {(place === 0 || reasons[place - 1]!.on !== reason.on) && (reason.on ? "it has " : "it lacks ")}
      <ShortName explorer={explorer} concept={reason.concept} /> <span class="muted">({signed(reason.adds, 1)})</span>
    </span>
  ));
}

export function ShortName({ explorer, concept, query }: { explorer: Explorer; concept: number; query?: Record<string, number> }): JSX.Element {
  const { name, verified } = namingOf(explorer, concept, useEdits());
  const shared = name && explorer.concepts.some((one, other) => other !== concept && one.name === name);
  return (
    <a href={conceptLink(concept, query)}>
      {name ? <Text value={name} limit={40} /> : <>concept {concept}</>}
      {shared && ` (${concept})`}
      {name && !verified && (
        <>
          <span aria-hidden="true"> ?</span>
          <span class="hidden"> (unverified)</span>
        </>
      )}
    </a>
  );
}

interface WaterfallProps {
  explorer: Explorer;
  row: number;
  k: number;
  start: number;
  ahead: number;
  shown: Reason[];
  others: Reason[];
}

/** Each bar begins where the one above ends. */
function Waterfall({ explorer, row, k, start, ahead, shown, others }: WaterfallProps): JSX.Element {
  const rest = others.reduce((sum, { adds }) => sum + adds, 0);
  const ends = [start];
  for (const adds of [...shown.map((reason) => reason.adds), rest]) ends.push(ends.at(-1)! + adds);
  const least = Math.min(0, ...ends, ahead);
  const span = Math.max(0, ...ends, ahead) - least || 1;
  const at = (value: number): number => (100 * (value - least)) / span;
  const bar = (from: number, to: number, kind: string): JSX.Element => (
    <span class="fall" aria-hidden="true">
      <span class="zero" style={{ left: `${at(0)}%` }} />
      <span class={`step ${kind}`} style={{ left: `${at(Math.min(from, to))}%`, width: `${Math.max(0.4, at(Math.max(from, to)) - at(Math.min(from, to)))}%` }} />
    </span>
  );
  const step = (value: number): string => (value < 0 ? "down" : "up");
  return (
    <table class="waterfall">
      <caption class="hidden">How far {classText(explorer, k, 40)} is ahead, and what each concept adds to it, the strongest first</caption>
      <colgroup>
        <col class="what" />
        <col />
        <col class="adds" />
      </colgroup>
      <thead class="hidden">
        <tr>
          <th scope="col">What</th>
          <th scope="col">From where to where</th>
          <th scope="col">Adds</th>
        </tr>
      </thead>
      <tbody>
        <tr>
          <th scope="row">
            An <Term of="average image">average {item("image")}</Term>: <Term of="ahead">ahead by</Term>
          </th>
          <td>{bar(0, start, "whole")}</td>
          <td class="num">{decimal(start)}</td>
        </tr>
        {shown.map(({ concept, on, adds }, place) => (
          <tr key={concept} data-reason={concept} data-adds={adds}>
            <th scope="row">
              <span class="reason">
                <span class={on ? "bit on" : "bit"}>{on ? "has" : "lacks"} </span>
                <ConceptName explorer={explorer} concept={concept} limit={36} />
                <HaveIt explorer={explorer} row={row} concept={concept} on={on} />
              </span>
            </th>
            <td>{bar(ends[place]!, ends[place + 1]!, step(adds))}</td>
            <td class="num">{signed(adds)}</td>
          </tr>
        ))}
        {others.length > 0 && (
          <tr>
            <th scope="row">{plural(others.length, "other concept")}</th>
            <td>{bar(ends.at(-2)!, ends.at(-1)!, step(rest))}</td>
            <td class="num">{signed(rest)}</td>
          </tr>
        )}
        <tr class="sum" data-ahead={ahead}>
          <th scope="row">This {item("image")}: ahead by</th>
          <td>{bar(0, ahead, "whole")}</td>
          <td class="num">{decimal(ahead)}</td>
        </tr>
      </tbody>
    </table>
  );
}
