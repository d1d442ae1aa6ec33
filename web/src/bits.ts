// Packed bits: concept 8 i + j is bit j of byte i, the least significant first.

const POPCOUNT = new Uint8Array(256);
for (let i = 1; i < 256; i++) POPCOUNT[i] = (i & 1) + POPCOUNT[i >> 1]!;

export const bytesFor = (concepts: number): number => Math.ceil(concepts / 8);

export const bitOf = (packed: Uint8Array, concept: number, offset = 0): number =>
  (packed[offset + (concept >> 3)]! >> (concept & 7)) & 1;

/** The bits with some flipped; the given ones stay as they are. */
export function flipped(packed: Uint8Array, concepts: Iterable<number>): Uint8Array {
  const result = packed.slice();
  for (const concept of concepts) result[concept >> 3]! ^= 1 << (concept & 7);
  return result;
}

/** Hamming distance of one row of bits to each of `rows` rows. */
export function distances(query: Uint8Array, all: Uint8Array, rows: number): Uint32Array {
  const width = query.length;
  const result = new Uint32Array(rows);
  for (let row = 0, at = 0; row < rows; row++) {
    let sum = 0;
    for (let i = 0; i < width; i++, at++) sum += POPCOUNT[all[at]! ^ query[i]!]!;
    result[row] = sum;
  }
  return result;
}

/** The rows with the fewest different bits, ties by row; `without` is left out. */
export function nearest(query: Uint8Array, all: Uint8Array, rows: number, count: number, without: number): [number, number][] {
  const far = distances(query, all, rows);
  const width = query.length * 8 + 1;
  const tally = new Uint32Array(width);
  for (let row = 0; row < rows; row++) if (row !== without) tally[far[row]!]!++;
  let limit = 0;
  for (let seen = tally[0]!; seen < count && limit < width - 1; ) seen += tally[++limit]!;
  const found: [number, number][] = [];
  for (let row = 0; row < rows; row++) if (row !== without && far[row]! <= limit) found.push([row, far[row]!]);
  return found.sort((a, b) => a[1] - b[1] || a[0] - b[0]).slice(0, count);
}
