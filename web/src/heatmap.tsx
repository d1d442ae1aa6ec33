import type { ComponentChildren, JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { useStore } from "./store.ts";
import { theme } from "./theme.tsx";

const LABELLED = 13; // px: rows that are lower have no room for their names

export interface Cell {
  row: number;
  column: number;
}

interface HeatMapProps {
  label: string; // what a screen reader says of the whole
  rows: string[]; // names, shown beside rows that are high enough
  columns: number;
  least: number; // px, of a cell's width
  height: number; // px, of a row
  value: (cell: Cell) => number; // -1 to 1; NaN: none
  said: (cell: Cell) => ComponentChildren; // of the chosen cell, with links
  open: (cell: Cell) => string; // an address, for Enter
  start: Cell; // chosen at first
  numbered?: boolean; // rows and columns are the same things: both bear their numbers, from 1
}

/** Coloured cells; arrow keys or a pointer choose one, Enter or its links lead on. */
export function HeatMap({ label, rows, columns, least, height, value, said, open, start, numbered = false }: HeatMapProps): JSX.Element {
  const frame = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const [room, setRoom] = useState(600);
  const [chosen, setChosen] = useState(start);
  const now = useStore(theme);
  const [dark, setDark] = useState(0);
  const width = Math.max(least, Math.min(34, Math.floor(room / Math.max(1, columns))));
  const cell = { row: Math.min(chosen.row, rows.length - 1), column: Math.min(chosen.column, columns - 1) };
  useEffect(() => setChosen(start), [columns, rows.length]);
  useEffect(() => {
    const box = frame.current!;
    if ((start.column + 1) * width > box.clientWidth) box.scrollLeft = (start.column + 0.5) * width - box.clientWidth / 2;
  }, [columns, width]);
  useEffect(() => {
    const watched = new ResizeObserver(() => frame.current && setRoom(frame.current.clientWidth));
    watched.observe(frame.current!);
    const media = matchMedia("(prefers-color-scheme: dark)");
    const turned = (): void => setDark((count) => count + 1);
    media.addEventListener("change", turned);
    return () => {
      watched.disconnect();
      media.removeEventListener("change", turned);
    };
  }, []);
  const values = useMemo(() => {
    const found = new Float32Array(rows.length * columns);
    for (let row = 0, at = 0; row < rows.length; row++) for (let column = 0; column < columns; column++, at++) found[at] = value({ row, column });
    return found;
  }, [rows, columns, value]);
  useEffect(() => {
    const place = canvas.current!;
    const density = Math.min(2, devicePixelRatio || 1);
    place.width = Math.round(columns * width * density);
    place.height = Math.round(rows.length * height * density);
    const pen = place.getContext("2d");
    if (!pen) return;
    const [ground, up, down] = ["ground", "up", "down"].map((name) => getComputedStyle(place.parentElement!.querySelector(`.probe.${name}`)!).color);
    pen.scale(density, density);
    pen.fillStyle = ground!;
    pen.fillRect(0, 0, columns * width, rows.length * height);
    const gap = width >= 8 && height >= 8 ? 1 : 0;
    for (let row = 0, at = 0; row < rows.length; row++) {
      for (let column = 0; column < columns; column++, at++) {
        const one = values[at]!;
        if (Number.isNaN(one) || one === 0) continue;
        pen.globalAlpha = Math.min(1, Math.abs(one));
        pen.fillStyle = one < 0 ? down! : up!;
        pen.fillRect(column * width, row * height, width - gap, height - gap);
      }
    }
  }, [values, rows, columns, width, height, now, dark]);

  const shows = (column: number): boolean =>
    width >= 20 || column === cell.column || (Math.abs(column - cell.column) * width > 24 && (column === 0 || (column + 1) % (width >= 8 ? 5 : 10) === 0));
  const choose = (row: number, column: number): void => {
    const next = { row: Math.max(0, Math.min(rows.length - 1, row)), column: Math.max(0, Math.min(columns - 1, column)) };
    setChosen(next);
    const box = frame.current!;
    const [left, right] = [next.column * width, (next.column + 1) * width];
    if (left < box.scrollLeft) box.scrollLeft = left;
    else if (right > box.scrollLeft + box.clientWidth) box.scrollLeft = right - box.clientWidth;
  };
  const key = (event: KeyboardEvent): void => {
    const moves: Record<string, [number, number]> = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], PageUp: [-10, 0], PageDown: [10, 0] };
    const move = moves[event.key];
    if (move) choose(cell.row + move[0], cell.column + move[1]);
    else if (event.key === "Home") choose(cell.row, 0);
    else if (event.key === "End") choose(cell.row, columns - 1);
    else if (event.key === "Enter") location.hash = open(cell);
    else return;
    event.preventDefault();
  };
  const point = (event: MouseEvent): void => {
    const box = canvas.current!.getBoundingClientRect();
    choose(Math.floor((event.clientY - box.top) / height), Math.floor((event.clientX - box.left) / width));
  };
  return (
    <div class="heat">
      <div class={numbered ? "heat-rows numbered" : "heat-rows"}>
        {height >= LABELLED && (
          <ul class="heat-names wide-only" aria-hidden="true">
            {rows.map((name, row) => (
              <li key={row} class={row === cell.row ? "chosen" : undefined} style={{ height: `${height}px`, lineHeight: `${height}px` }}>
                <bdi>{name}</bdi>
                {numbered && <span class="n">{row + 1}</span>}
              </li>
            ))}
          </ul>
        )}
        {numbered && (
          <ul class={height >= LABELLED ? "heat-numbers narrow-only" : "heat-numbers"} aria-hidden="true">
            {rows.map((_, row) => (
              <li key={row} class={row === cell.row ? "chosen" : undefined} style={{ height: `${height}px`, lineHeight: `${height}px` }}>
                {(height >= LABELLED || (row + 1) % 10 === 0) && row + 1}
              </li>
            ))}
          </ul>
        )}
        <div
          ref={frame}
          class="heat-frame"
          tabIndex={0}
          role="application"
          aria-roledescription="heat map"
          aria-label={`${label}. Arrow keys choose a cell, Enter opens it.`}
          onKeyDown={key}
        >
          {numbered && (
            <div class="heat-columns" style={{ width: `${columns * width}px` }} aria-hidden="true">
              {rows.slice(0, columns).map((_, column) => (
                <span key={column} class={column === cell.column ? "chosen" : undefined} style={{ width: `${width}px` }}>
                  {shows(column) && column + 1}
                </span>
              ))}
            </div>
          )}
          <div class="heat-cells" style={{ width: `${columns * width}px`, height: `${rows.length * height}px` }} onClick={point} onDblClick={() => (location.hash = open(cell))}>
            <span class="probe ground" />
            <span class="probe up" />
            <span class="probe down" />
            <canvas ref={canvas} aria-hidden="true" style={{ width: `${columns * width}px`, height: `${rows.length * height}px` }} />
            <span
              class="heat-chosen"
              style={{ left: `${cell.column * width}px`, top: `${cell.row * height}px`, width: `${width}px`, height: `${height}px` }}
            />
          </div>
        </div>
      </div>
      <p class="heat-said" role="status">
        {said(cell)}
      </p>
    </div>
  );
}
