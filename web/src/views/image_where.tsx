// Where an image shows the concepts that decide its class: each puts its map over the picture.
import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { announce } from "../announce.ts";
import type { Explorer } from "../explorer.ts";
import { Term } from "../glossary.tsx";
import { argmax, logits } from "../head.ts";
import { mapOf } from "../maps.ts";
import { classText, ConceptName, conceptText, Signed } from "../parts.tsx";
import { firstTwo, reasonsFor } from "../reasons.ts";
import { setQuery, useQuery } from "../route.ts";
import { Colours, Seen, WholePicture } from "../seen.tsx";
import { Needs } from "../waiting.tsx";
import { count, plural, signed } from "../words.ts";
import type { WhatIf } from "./image.tsx";

const SHOWN = 8;

export function ImageWhere({ explorer, view }: { explorer: Explorer; view: WhatIf }): JSX.Element {
  return (
    <section aria-labelledby="where" class="card image-where" data-where={view.row}>
      <h2 id="where">
        Where its concepts are seen <Term of="map" />
      </h2>
      <Needs explorer={explorer} of={[`maps@${view.row}`]}>
        {() => <Chosen explorer={explorer} view={view} />}
      </Needs>
    </section>
  );
}

/** Where other images of the page have maps and this one has none. */
export function NoMaps({ explorer: { mapped, page } }: { explorer: Explorer }): JSX.Element {
  return (
    <section aria-labelledby="where" class="card">
      <h2 id="where">
        Where its concepts are seen <Term of="map" />
      </h2>
      <p class="muted no-maps">
        No maps of this image: {count(mapped.size)} of the {plural(page.images, "image")} on this page have them. For all, build the page with <code>--maps {page.images}</code>.
      </p>
    </section>
  );
}

function Chosen({ explorer, view: { row, given } }: { explorer: Explorer; view: WhatIf }): JSX.Element {
  const asked = useQuery().where;
  const [over, setOver] = useState<number | null>(null); // under a pointer or the keyboard
  const { reasons, first, most } = useMemo(() => {
    const values = logits(explorer.head, given);
    const [first, second] = explorer.head.classes > 1 ? firstTwo(values) : [argmax(values), 0];
    const all = reasonsFor(explorer, given, first, second).all.filter(({ concept, on }) => on && mapOf(explorer, row, concept));
    return { reasons: all, first, most: Math.max(0, ...all.map(({ adds }) => Math.abs(adds))) };
  }, [explorer, row, given]);
  const listed = reasons.slice(0, SHOWN);
  const wanted = asked === undefined || asked === "" ? ((listed.find(({ adds }) => adds > 0) ?? listed[0])?.concept ?? null) : asked === "none" ? null : Number(asked);
  const other = wanted !== null && !listed.some(({ concept }) => concept === wanted) ? reasons.find(({ concept }) => concept === wanted) : undefined;
  const tiles = other ? [other, ...listed.slice(0, SHOWN - 1)] : listed;
  const now = over ?? wanted;
  const map = now === null ? null : mapOf(explorer, row, now);
  const press = (concept: number): void => {
    const off = wanted === concept;
    setOver(null);
    setQuery({ where: off ? "none" : concept });
    announce(off ? "The picture without a map." : `The map of ${conceptText(explorer, concept)}.`);
  };
  if (!tiles.length) return <p class="empty">None of its concepts that are on has a map.</p>;
  return (
    <div class="where-parts">
      <div class="where-picture">
        <WholePicture key={row} explorer={explorer} row={row} concept={map ? now : null} found={map} size={380} />
        <p class="where-said">
          {map && now !== null ? (
            <>
              <ConceptName explorer={explorer} concept={now} limit={40} /> <span class="muted">margin {signed(map.margin)}</span>
            </>
          ) : (
            <span class="muted">No map shown</span>
          )}
        </p>
        <Colours explorer={explorer} />
      </div>
      <div>
        <p class="muted">
          The concepts that it has and that weigh most in the decision for {classText(explorer, first, 40)}, each with its <Term of="region">region</Term>. Press one to see its map.
        </p>
        <ul class="where-tiles">
          {tiles.map(({ concept, adds }) => {
            const found = mapOf(explorer, row, concept)!;
            return (
              <li key={concept} class={now === concept ? "shown" : undefined} onMouseEnter={() => setOver(concept)} onMouseLeave={() => setOver(null)}>
                <button
                  type="button"
                  class="where-tile"
                  aria-pressed={wanted === concept}
                  aria-label={`Map of ${conceptText(explorer, concept)}`}
                  data-map={concept}
                  onFocus={() => setOver(concept)}
                  onBlur={() => setOver(null)}
                  onClick={() => press(concept)}
                >
                  <Seen explorer={explorer} row={row} concept={concept} found={found} as="crop" alt="" />
                </button>
                <span class="where-name">
                  <ConceptName explorer={explorer} concept={concept} limit={36} />
                  <Signed value={adds} most={most} />
                </span>
              </li>
            );
          })}
        </ul>
      </div>
    </div>
  );
}
