import type { JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { bitOf } from "../bits.ts";
import { wrong, type Explorer } from "../explorer.ts";
import { Choice, ClassName, conceptText } from "../parts.tsx";
import { imageLink, Picture } from "../pictures.tsx";
import { setQuery, useQuery } from "../route.ts";
import { useStore } from "../store.ts";
import { Text } from "../text.tsx";
import { theme } from "../theme.tsx";
import { item, plural } from "../words.ts";

const EDGE = 12; // px around the points
const NEAR = 18; // px from a point, within which it is meant
const TIP = 150; // px, the width of what is said of a point
const COLOURS = ["#4477aa", "#ee7733", "#228833", "#cc3377", "#66a3d2", "#b8860b", "#8855bb", "#00a08a", "#bb5544", "#7a8b00"];
const [REST, ON] = ["#8c939e", "#d55e00"];

/** The colour of each image, and which colours mean what. */
function coloured(explorer: Explorer, rows: number[], by: string): [string[], [string, JSX.Element][]] {
  const { labels, page, bits, width } = explorer;
  if (by === "wrong") {
    return [rows.map((row) => (wrong(explorer, row) ? ON : REST)), [[ON, <>misclassified</>], [REST, <>the others</>]]];
  }
  if (by !== "" && Number(by) < page.concepts) {
    return [rows.map((row) => (bitOf(bits, Number(by), row * width) ? ON : REST)), [[ON, <>have it</>], [REST, <>lack it</>]]];
  }
  const many = page.classes.map(() => 0);
  for (const row of rows) if (labels[row]! >= 0) many[labels[row]!]!++;
  const first = [...many.keys()].filter((k) => many[k]).sort((a, b) => many[b]! - many[a]! || a - b);
  const place = new Map(first.slice(0, COLOURS.length).map((k, n) => [k, COLOURS[n]!]));
  const legend = [...place].map(([k, colour]): [string, JSX.Element] => [colour, <ClassName explorer={explorer} k={k} limit={24} />]);
  const rest = rows.some((row) => !place.has(labels[row]!));
  return [rows.map((row) => place.get(labels[row]!) ?? REST), rest ? [...legend, [REST, <>others</>]] : legend];
}

/** Images as points, those with like bits together; a pointer shows one, a click opens it. The list has the same images for a keyboard. */
export function ImageMap({ explorer, rows }: { explorer: Explorer; rows: number[] }): JSX.Element {
  const { colour = "" } = useQuery();
  const frame = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(600);
  const [chosen, setChosen] = useState<number | null>(null); // place in rows
  const [pinned, setPinned] = useState(false); // by a finger: it stays, and is a link
  const now = useStore(theme);
  const height = Math.min(width, 620);
  const [colours, legend] = useMemo(() => coloured(explorer, rows, colour), [explorer, rows, colour]);
  const points = useMemo(
    () => rows.map((row): [number, number] => [EDGE + explorer.places[2 * row]! * (width - 2 * EDGE), EDGE + explorer.places[2 * row + 1]! * (height - 2 * EDGE)]),
    [explorer, rows, width, height],
  );
  useEffect(() => {
    const watched = new ResizeObserver(() => frame.current && setWidth(frame.current.clientWidth));
    watched.observe(frame.current!);
    return () => watched.disconnect();
  }, []);
  useEffect(() => setChosen(null), [rows]);
  useEffect(() => {
    const place = canvas.current!;
    const density = Math.min(2, devicePixelRatio || 1);
    [place.width, place.height] = [Math.round(width * density), Math.round(height * density)];
    const pen = place.getContext("2d");
    if (!pen) return;
    pen.scale(density, density);
    pen.globalAlpha = rows.length > 2000 ? 0.6 : 0.85;
    const radius = rows.length > 2000 ? 2.2 : rows.length > 400 ? 3.2 : 4.5;
    for (const behind of [true, false]) {
      points.forEach(([x, y], n) => {
        if ((colours[n] === REST) !== behind) return;
        pen.fillStyle = colours[n]!;
        pen.beginPath();
        pen.arc(x, y, radius, 0, 7);
        pen.fill();
      });
    }
  }, [points, colours, width, height, now]);

  const nearest = (event: PointerEvent | MouseEvent): number | null => {
    const box = canvas.current!.getBoundingClientRect();
    let [best, far] = [null as number | null, NEAR ** 2];
    points.forEach(([x, y], n) => {
      const apart = (x - event.clientX + box.left) ** 2 + (y - event.clientY + box.top) ** 2;
      if (apart < far) [best, far] = [n, apart];
    });
    return best;
  };
  const click = (event: PointerEvent): void => {
    const found = nearest(event);
    setChosen(found);
    setPinned(event.pointerType !== "mouse");
    if (found !== null && event.pointerType === "mouse") location.hash = imageLink(explorer, rows[found]!);
  };
  const row = chosen === null ? undefined : rows[chosen];
  const [x, y] = points[chosen ?? -1] ?? [0, 0];
  const concepts = explorer.concepts.map((_, concept): [string, string] => [String(concept), conceptText(explorer, concept)]);
  return (
    <section aria-label="Map">
      <div class="tools">
        <Choice label="Colour" value={colour} options={[["", "class"], ["wrong", "mistakes"], ...concepts]} onChange={(value) => setQuery({ colour: value })} />
        <p class="muted">Those with like bits lie together. Point at one to see it, press to open it.</p>
      </div>
      <div ref={frame} class="image-map" style={{ height: `${height}px` }} onPointerLeave={() => !pinned && setChosen(null)}>
        <canvas
          ref={canvas}
          role="img"
          aria-label={`Map of ${plural(rows.length, item("image"))} by their bits; "As: a list" shows the same ones`}
          style={{ width: `${width}px`, height: `${height}px` }}
          onPointerMove={(event) => event.pointerType === "mouse" && (setPinned(false), setChosen(nearest(event)))}
          onClick={(event) => click(event as unknown as PointerEvent)}
        />
        {row !== undefined && (
          <>
            <span class="map-chosen" style={{ left: `${x}px`, top: `${y}px` }} />
            <a class={pinned ? "map-tip pinned" : "map-tip"} href={imageLink(explorer, row)} tabIndex={-1} style={{ left: `${Math.min(x + 14, width - TIP)}px`, [y > height / 2 ? "bottom" : "top"]: `${(y > height / 2 ? height - y : y) + 12}px` }}>
              <Picture key={row} explorer={explorer} row={row} size={128} decorative />
              <span class="caption">
                <Text value={explorer.page.classes[explorer.labels[row]!] ?? "class unknown"} limit={40} />
                {wrong(explorer, row) && (
                  <span class="wrong">
                    taken for <Text value={explorer.page.classes[explorer.exact[row]!] ?? "unknown"} limit={40} />
                  </span>
                )}
              </span>
            </a>
          </>
        )}
      </div>
      <ul class="legend">
        {legend.map(([of, words], n) => (
          <li key={n}>
            <span class="key" style={{ background: of }} />
            {words}
          </li>
        ))}
      </ul>
    </section>
  );
}
