// Images of one class under a concept: with its map where there is one, and whether they have it.
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { bitOf } from "../bits.ts";
import { wrong, type Explorer } from "../explorer.ts";
import { mapOf } from "../maps.ts";
import { describe, imageLink, Picture } from "../pictures.tsx";
import { permutation } from "../random.ts";
import { Seen } from "../seen.tsx";
import { Needs } from "../waiting.tsx";
import { item, signed } from "../words.ts";

interface OfClassProps {
  explorer: Explorer;
  concept: number;
  k: number;
  count: number;
  on?: boolean; // such images first; else both kinds as they come
}

/** Those with maps first, then those classified right, else in random order. */
export function OfClass({ explorer, concept, k, count, on }: OfClassProps): JSX.Element {
  const rows = useMemo(() => {
    const worth = (row: number): number =>
      (on !== undefined && (bitOf(explorer.bits, concept, row * explorer.width) === 1) === on ? 4 : 0) + (explorer.mapped.has(row) ? 2 : 0) + (wrong(explorer, row) ? 0 : 1);
    const all = [...permutation(explorer.page.images, concept)].filter((row) => explorer.labels[row] === k);
    return all.sort((a, b) => worth(b) - worth(a)).slice(0, count);
  }, [explorer, concept, k, count, on]);
  if (rows.length === 0) return <p class="empty">No {item("image")} on this page.</p>;
  return (
    <ul class="seen-row of-class">
      {rows.map((row) => (
        <li key={row} data-row={row}>
          {explorer.mapped.has(row) ? (
            <Needs explorer={explorer} of={[`maps@${row}`]}>
              {() => <One explorer={explorer} row={row} concept={concept} />}
            </Needs>
          ) : (
            <One explorer={explorer} row={row} concept={concept} />
          )}
        </li>
      ))}
    </ul>
  );
}

function One({ explorer, row, concept }: { explorer: Explorer; row: number; concept: number }): JSX.Element {
  const found = mapOf(explorer, row, concept);
  const has = bitOf(explorer.bits, concept, row * explorer.width) === 1;
  return (
    <>
      <a class="seen-cell" href={imageLink(explorer, row, { where: found && has ? concept : null })}>
        {found ? (
          <Seen explorer={explorer} row={row} concept={concept} found={found} as="map" alt={`${describe(explorer, row)}; over it the map of concept ${concept}`} />
        ) : (
          <Picture explorer={explorer} row={row} size={120} />
        )}
      </a>
      <span class="caption">
        {has ? "has it" : "lacks it"}
        {found && <span class="muted"> ({signed(found.margin)})</span>}
      </span>
    </>
  );
}
