// Pictures with a map over them, and crops of the responsible region.
import type { JSX } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import type { Explorer } from "./explorer.ts";
import { coloured, viewIn, type Found } from "./maps.ts";
import { describe, originalFile } from "./pictures.tsx";

const DRAWN = 224; // px of the longer side that a map is drawn in; the browser scales it to the picture

export type As = "map" | "crop" | "picture";

const share = (value: number): string => `${(100 * value).toFixed(3)}%`;

/** A map by itself, as large as what holds it. */
export function Heat({ explorer, found, row, concept }: { explorer: Explorer; found: Found; row: number; concept: number }): JSX.Element {
  const canvas = useRef<HTMLCanvasElement>(null);
  const maps = explorer.page.maps!;
  const [height, width] = maps.size;
  const scale = Math.min(1, DRAWN / Math.max(height, width)) || 1;
  const [wide, high] = [Math.max(maps.grid[1], Math.round(width * scale)), Math.max(maps.grid[0], Math.round(height * scale))];
  useLayoutEffect(() => {
    const context = canvas.current!.getContext("2d")!;
    context.putImageData(new ImageData(coloured(found.values, maps, wide, high), wide, high), 0, 0);
  }, [explorer, row, concept, wide, high]);
  return <canvas ref={canvas} class="heat-map" width={wide} height={high} data-row={row} data-concept={concept} aria-hidden="true" />;
}

/** The box of the responsible region, over the network's view. */
function Frame({ explorer, found }: { explorer: Explorer; found: Found }): JSX.Element | null {
  const [height, width] = explorer.page.maps!.size;
  if (!found.box) return null;
  const [left, top, right, bottom] = found.box;
  const style = { left: share(left / width), top: share(top / height), width: share((right - left) / width), height: share((bottom - top) / height) };
  return <span class="seen-frame" style={style} />;
}

/** The network's view of an image, as large as what holds it: from the whole picture where the page has it. */
function View({ explorer, row, alt }: { explorer: Explorer; row: number; alt: string }): JSX.Element {
  const [broken, setBroken] = useState(false);
  const file = originalFile(explorer, row);
  if (file && !broken) return <img class="cover" src={file} alt={alt} loading="lazy" decoding="async" draggable={false} onError={() => setBroken(true)} />;
  const sheet = explorer.page.sprites;
  const cells = sheet ? sheet.columns * sheet.rows : 1;
  const cell = row % cells;
  const from = sheet?.files[Math.floor(row / cells)];
  if (!sheet || !from) return <span class="cover" role="img" aria-label={alt} />;
  const style = {
    width: `${100 * sheet.columns}%`,
    height: `${100 * sheet.rows}%`,
    left: `${-100 * (cell % sheet.columns)}%`,
    top: `${-100 * Math.floor(cell / sheet.columns)}%`,
    imageRendering: Math.max(sheet.width, sheet.height) < 48 ? "pixelated" : "auto",
  };
  return (
    <span class="cover">
      <img src={from} alt={alt} loading="lazy" decoding="async" draggable={false} style={style} />
    </span>
  );
}

interface SeenProps {
  explorer: Explorer;
  row: number;
  concept: number;
  found: Found;
  as: As;
  alt: string; // "": what stands beside it says it
}

/** An image as the network sees it: with its map and the box, the region alone, or plain. */
export function Seen({ explorer, row, concept, found, as, alt }: SeenProps): JSX.Element {
  const [height, width] = explorer.page.maps!.size;
  const [left, top, right, bottom] = (as === "crop" && found.box) || [0, 0, width, height];
  const [wide, high] = [right - left, bottom - top];
  const longer = Math.max(wide, high);
  const inside = { width: share(width / wide), height: share(height / high), left: share(-left / wide), top: share(-top / high) };
  return (
    <span class="seen" style={{ width: share(wide / longer), aspectRatio: `${wide} / ${high}` }}>
      <span class="seen-view" style={inside}>
        <View explorer={explorer} row={row} alt={alt} />
        {as === "map" && <Heat explorer={explorer} found={found} row={row} concept={concept} />}
        {as === "map" && <Frame explorer={explorer} found={found} />}
      </span>
    </span>
  );
}

/** The whole picture, with a map over the part that the network sees. */
export function WholePicture({ explorer, row, concept, found, size }: { explorer: Explorer; row: number; concept: number | null; found: Found | null; size: number }): JSX.Element {
  const [[wide, high], setNatural] = useState([0, 0]);
  const [broken, setBroken] = useState(false);
  const file = originalFile(explorer, row);
  const alt = `${describe(explorer, row)}${concept === null ? "" : `; over it the map of concept ${concept}`}`;
  const none: Found = { values: new Float64Array(0), margin: 0, box: null };
  if (!file || broken) {
    return (
      <span class="whole-picture" style={{ width: `${Math.min(size, 240)}px` }}>
        <Seen explorer={explorer} row={row} concept={concept ?? -1} found={found ?? none} as={found ? "map" : "picture"} alt={alt} />
      </span>
    );
  }
  const place = wide > 0 && high > 0 ? viewIn(wide, high, explorer.page.maps!.size) : null;
  const style = place && { left: share(place.left), top: share(place.top), width: share(place.width), height: share(place.height) };
  return (
    <a class="original whole-picture" href={file} target="_blank" rel="noreferrer" title="At full size" style={place ? { maxWidth: `min(100%, ${Math.round((size * wide) / high)}px)` } : undefined}>
      <img src={file} alt={alt} decoding="async" onLoad={({ currentTarget: img }) => setNatural([img.naturalWidth, img.naturalHeight])} onError={() => setBroken(true)} />
      {style && found && concept !== null && (
        <span class="seen-part" style={style}>
          <Heat explorer={explorer} found={found} row={row} concept={concept} />
          <Frame explorer={explorer} found={found} />
        </span>
      )}
    </a>
  );
}

/** What the colours say. */
export function Colours({ explorer }: { explorer: Explorer }): JSX.Element {
  const { colours } = explorer.page.maps!;
  const key = (colour: readonly number[]): JSX.Element => <span class="key" style={{ background: `rgb(${colour.join(" ")})` }} aria-hidden="true" />;
  return (
    <p class="legend">
      <span>{key(colours.for)}speaks for the bit</span>
      <span>{key(colours.against)}speaks against it</span>
      <span>
        <span class="key frame-key" aria-hidden="true" />
        region: box around the highest values
      </span>
    </p>
  );
}
