// Where the images that have a concept show it, the strongest first.
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { entries, type Explorer } from "../explorer.ts";
import { Term } from "../glossary.tsx";
import { mapOf } from "../maps.ts";
import { describe, imageLink, Verdict } from "../pictures.tsx";
import { setQuery, useQuery } from "../route.ts";
import { Colours, Seen, type As } from "../seen.tsx";
import { Needs } from "../waiting.tsx";
import { signed } from "../words.ts";

const EACH = 4; // of the strongest, and of the barely on
const MODES: [As, string][] = [
  ["map", "Map"],
  ["crop", "Region"],
  ["picture", "Picture"],
];

export function ConceptWhere({ explorer, concept }: { explorer: Explorer; concept: number }): JSX.Element | null {
  const { strongest, samples, mapped, page } = explorer;
  const rows = useMemo(
    () => {
      const ends = strongest && [0, 1].flatMap((kind) => entries(strongest, kind * page.concepts + concept).slice(0, EACH));
      return [...new Set(ends ?? entries(samples, concept))].filter((row) => mapped.has(row));
    },
    [explorer, concept],
  );
  if (!explorer.page.maps || !explorer.page.maps.rows.length) return null;
  return (
    <section aria-labelledby="where" data-where={concept}>
      <h2 id="where">
        Where it is seen <Term of="map" />
      </h2>
      {rows.length === 0 ? (
        <p class="empty">No image with maps has this concept.</p>
      ) : (
        <Needs explorer={explorer} of={rows.map((row) => `maps@${row}` as const)}>
          {() => <Row explorer={explorer} concept={concept} rows={rows} />}
        </Needs>
      )}
    </section>
  );
}

function Row({ explorer, concept, rows }: { explorer: Explorer; concept: number; rows: number[] }): JSX.Element {
  const asked = useQuery().where;
  const as = MODES.find(([mode]) => mode === asked)?.[0] ?? "map";
  const found = rows
    .flatMap((row) => {
      const map = mapOf(explorer, row, concept);
      return map ? [{ row, map }] : [];
    })
    .sort((a, b) => b.map.margin - a.map.margin);
  return (
    <>
      <p class="muted">
        {explorer.strongest
          ? "Those with the largest margins, then those barely on."
          : "Drawn at random from the images that have it, the strongest first. This page has no margins, by which all of them would be in order."}{" "}
        The <Term of="region">region</Term> and the <Term of="margin">margin</Term> stand below each picture.
      </p>
      <div class="seen-tools">
        <fieldset class="modes">
          <legend class="hidden">Show</legend>
          {MODES.map(([mode, text]) => (
            <label key={mode}>
              <input type="radio" name="where" value={mode} checked={mode === as} onChange={() => setQuery({ where: mode === "map" ? null : mode })} />
              <span>{text}</span>
            </label>
          ))}
        </fieldset>
        <Colours explorer={explorer} />
      </div>
      <ul class="seen-row">
        {found.map(({ row, map }) => (
          <li key={row} data-row={row} data-margin={map.margin}>
            <a class="seen-cell" href={imageLink(explorer, row, { where: concept })}>
              <Seen explorer={explorer} row={row} concept={concept} found={map} as={as} alt={SAID[as](describe(explorer, row), concept)} />
            </a>
            {as !== "crop" && map.box && (
              <span class="seen-crop">
                <Seen explorer={explorer} row={row} concept={concept} found={map} as="crop" alt="" />
              </span>
            )}
            <span class="caption">
              <strong>{signed(map.margin)}</strong> <Verdict explorer={explorer} row={row} />
            </span>
          </li>
        ))}
      </ul>
    </>
  );
}

const SAID: Record<As, (image: string, concept: number) => string> = {
  map: (image, concept) => `${image}; over it the map of concept ${concept}`,
  crop: (image, concept) => `The region of concept ${concept} in ${image}`,
  picture: (image) => image,
};
