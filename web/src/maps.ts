// Where in an image a concept is seen: how much each place adds to its pre-activation.
import { decode } from "./codec.ts";
import type { Explorer } from "./explorer.ts";
import type { ArrayData, MapsData } from "./types.ts";

/** data/maps-ROW.js, decoded: the maps of one image. */
export interface ImageMaps {
  concepts: Int32Array;
  values: Uint8Array; // [maps, rows, columns]: 128 is 0, 1 and 255 are minus and plus the top
  tops: Float32Array; // the largest absolute value of each map
  margins: Float32Array; // pre-activations: what the values of a map sum to
  boxes: Int32Array; // [maps, 4]: left, top, right, bottom in pixels as the network sees them; -1: none
}

/** One map. */
export interface Found {
  values: Float64Array; // [rows, columns], -1 to 1: shares of the largest absolute value
  margin: number;
  box: [number, number, number, number] | null;
}

export function opened({ page }: Explorer, arrays: Record<string, ArrayData>): ImageMaps {
  const count = arrays.concepts?.shape[0] ?? 0;
  const [rows, columns] = page.maps!.grid;
  return {
    concepts: decode(arrays, "concepts", "i4", [count]),
    values: decode(arrays, "values", "u1", [count, rows, columns]),
    tops: decode(arrays, "tops", "f4", [count]),
    margins: decode(arrays, "margins", "f4", [count]),
    boxes: decode(arrays, "boxes", "i4", [count, 4]),
  };
}

/** The map of a concept over an image, once it is loaded; null where the page has none. */
export function mapOf({ page, maps }: Explorer, row: number, concept: number): Found | null {
  const all = maps.get(row);
  const place = all?.concepts.indexOf(concept) ?? -1;
  if (!all || place < 0) return null;
  const [rows, columns] = page.maps!.grid;
  const values = Float64Array.from(all.values.subarray(place * rows * columns, (place + 1) * rows * columns), (value) => (value - 128) / 127);
  const [left, top, right, bottom] = all.boxes.subarray(4 * place, 4 * place + 4) as unknown as [number, number, number, number];
  return { values, margin: all.margins[place]!, box: left < 0 ? null : [left, top, right, bottom] };
}

/** Red, green, blue and opacity of a map of any size: bilinear between the middles of its places. */
export function coloured(values: ArrayLike<number>, { grid, colours, strength }: MapsData, width: number, height: number): Uint8ClampedArray<ArrayBuffer> {
  const [rows, columns] = grid;
  const pixels = new Uint8ClampedArray(4 * width * height);
  const along = (at: number, pixels: number, places: number): [number, number, number] => {
    const where = Math.min(Math.max(((at + 0.5) * places) / pixels - 0.5, 0), places - 1);
    const first = Math.floor(where);
    return [first, Math.min(first + 1, places - 1), where - first];
  };
  for (let y = 0, at = 0; y < height; y++) {
    const [above, below, down] = along(y, height, rows);
    for (let x = 0; x < width; x++, at += 4) {
      const [left, right, across] = along(x, width, columns);
      const upper = values[above * columns + left]! * (1 - across) + values[above * columns + right]! * across;
      const lower = values[below * columns + left]! * (1 - across) + values[below * columns + right]! * across;
      const value = upper * (1 - down) + lower * down;
      pixels.set(value > 0 ? colours.for : colours.against, at);
      pixels[at + 3] = 255 * strength * Math.min(1, Math.abs(value));
    }
  }
  return pixels;
}

/** Where the network's view lies in a whole picture, as shares of it: the picture covers the view, its middle is taken. */
export function viewIn(width: number, height: number, [rows, columns]: [number, number]): { left: number; top: number; width: number; height: number } {
  const scale = Math.max(rows / height, columns / width);
  const [wide, high] = [columns / scale / width, rows / scale / height];
  return { left: (1 - wide) / 2, top: (1 - high) / 2, width: wide, height: high };
}
