import { bytesFor } from "./bits.ts";
import { DataError, decode, decodeRows } from "./codec.ts";
import type { Head } from "./head.ts";
import type { ImageMaps } from "./maps.ts";
import type { ArrayData, ConceptData, DoubtfulData, PageData } from "./types.ts";
import { setItem } from "./words.ts";

export const FORMAT = 3;

/** A table of numbers with rows of one length. */
export interface Rows<T> {
  data: T;
  width: number;
}

/** The entries of a row that are there. */
export const entries = ({ data, width }: Rows<Int32Array>, row: number): number[] =>
  [...data.subarray(row * width, (row + 1) * width)].filter((value) => value >= 0);

/** All that the page shows, decoded once. What is of single images is empty until `needs.ts` has loaded it. */
export interface Explorer {
  page: PageData;
  concepts: ConceptData[];
  head: Head;
  used: boolean[]; // of each concept, whether the weight of some class is not 0
  bits: Uint8Array; // [images, width]
  width: number; // bytes an image
  labels: Int32Array; // -1: unknown
  exact: Int32Array;
  smooth: Int32Array;
  trained: Float32Array; // [concepts, classes], shares of training images; NaN: a class without any
  held: Float32Array; // the same of the part's images
  ids: string[];
  texts: string[]; // where the images of this page are texts or links
  places: Float32Array; // [images, 2], on the map of all images, in 0 to 1
  doubtful: DoubtfulData | null; // loaded by `needs.ts`
  conceptOrder: Int32Array; // concepts with similar shares stand together
  classOrder: Int32Array;
  related: Rows<Int32Array>; // [3 * concepts, n]: similar, opposite, together; -1: none
  relatedBy: Float32Array; // their correlations
  typical: Rows<Int32Array>; // [classes, n], rows of images; -1: none
  samples: Rows<Int32Array>; // [concepts, n], drawn at random among those with the concept
  strongest: Rows<Int32Array> | null; // [3 * concepts, n]: most strongly on, barely on, barely off
  strengths: Rows<Int32Array> | null; // [concepts, bins], images by margin: the first half of the bins is below the threshold
  confusion: Int32Array; // [pairs, 3]: class, predicted class, images of the part
  mistakes: [number, number, number][]; // those of different classes, the most frequent first
  rowOf: Map<string, number>;
  originals: ReadonlySet<number>; // rows of images that are there at full size
  mapped: ReadonlySet<number>; // rows of images that have maps
  maps: Map<number, ImageMaps>; // loaded by `needs.ts`
}

export function open(found: Record<string, unknown>): Explorer {
  const page = object(found.page, "data/page.js") as unknown as PageData;
  if (page.format !== FORMAT) {
    throw new DataError(`expected data of format ${FORMAT}, got ${page.format}: written by another version of htaf`);
  }
  for (const key of ["about", "classes", "scores", "per_class", "notes"] as const) list(page[key], `${key} in data/page.js`);
  for (const key of ["groups", "parts", "chunks", "items"] as const) object(page[key], `${key} in data/page.js`);
  setItem(page.items.kind);
  const concepts = list(found.concepts, "data/concepts.js", page.concepts) as ConceptData[];
  const arrays = object(found.arrays, "data/arrays.js") as Record<string, ArrayData>;
  const [count, classes, width] = [page.images, page.classes.length, bytesFor(page.concepts)];
  list(page.per_class, "per_class in data/page.js", classes);
  const size = page.concepts;
  const related = decodeRows(arrays, "related", "i4", 3 * size);
  const confusion = decodeRows(arrays, "confusion", "i4", null).data;
  const weight = decode(arrays, "weight", "f4", [classes, size]);
  return {
    page,
    concepts,
    head: {
      classes,
      concepts: page.concepts,
      weight,
      bias: decode(arrays, "bias", "f4", [classes]),
    },
    used: Array.from({ length: size }, (_, concept) => page.per_class.some((_, k) => weight[k * size + concept] !== 0)),
    bits: new Uint8Array(count * width),
    width,
    labels: new Int32Array(0),
    exact: new Int32Array(0),
    smooth: new Int32Array(0),
    ids: new Array<string>(count),
    texts: new Array<string>(count),
    rowOf: new Map<string, number>(),
    places: new Float32Array(0),
    doubtful: null,
    originals: new Set(page.originals?.rows ?? []),
    mapped: new Set(page.maps?.rows ?? []),
    maps: new Map<number, ImageMaps>(),
    trained: decode(arrays, "shares", "f4", [page.concepts, classes]),
    held: decode(arrays, "held", "f4", [page.concepts, classes]),
    conceptOrder: decode(arrays, "concept_order", "i4", [size]),
    classOrder: decode(arrays, "class_order", "i4", [classes]),
    related,
    relatedBy: decodeRows(arrays, "related_by", "f4", 3 * size).data,
    typical: decodeRows(arrays, "typical", "i4", classes),
    samples: decodeRows(arrays, "samples", "i4", size),
    strongest: "strongest" in arrays ? decodeRows(arrays, "strongest", "i4", 3 * size) : null,
    strengths: "strengths" in arrays ? decodeRows(arrays, "strengths", "i4", size) : null,
    confusion,
    mistakes: Array.from({ length: confusion.length / 3 }, (_, n): [number, number, number] => [confusion[3 * n]!, confusion[3 * n + 1]!, confusion[3 * n + 2]!])
      .filter(([label, guess]) => label !== guess)
      .sort((a, b) => b[2] - a[2]),
  };
}

function object(value: unknown, where: string): Record<string, unknown> {
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw new DataError(`expected an object in ${where}`);
  return value as Record<string, unknown>;
}

function list(value: unknown, where: string, length?: number): unknown[] {
  if (!Array.isArray(value)) throw new DataError(`expected a list: ${where}`);
  if (length !== undefined && value.length !== length) {
    throw new DataError(`expected ${length} entries, got ${value.length}: ${where}`);
  }
  return value;
}

export const bitsOf = (explorer: Explorer, row: number): Uint8Array =>
  explorer.bits.subarray(row * explorer.width, (row + 1) * explorer.width);

export const weightOf = ({ head }: Explorer, k: number, concept: number): number => head.weight[k * head.concepts + concept]!;

/** Whether no class draws on a concept and the class hardly tells which items have it: right in less than 80%, where 50% is chance. */
export const isBeyond = ({ used, concepts }: Explorer, concept: number): boolean => {
  const { balanced, dead } = concepts[concept]!;
  return !used[concept] && !dead && balanced !== null && balanced < 0.8;
};

/** The concepts on which some class draws. */
export const usedConcepts = ({ used }: Explorer): number[] => used.flatMap((one, concept) => (one ? [concept] : []));

/** Whether a class, or one of two and not both alike, draws on a concept. */
export const drawsOn = (explorer: Explorer, concept: number, k: number, than: number | null = null): boolean =>
  weightOf(explorer, k, concept) !== (than === null ? 0 : weightOf(explorer, than, concept));

export const trainedShareOf = ({ trained, head }: Explorer, k: number, concept: number): number => trained[concept * head.classes + k]!;

/** Whether the part has images of the class that did not teach the network. */
export const isHeldOut = ({ page }: Explorer, k: number): boolean => page.part !== "train" && page.per_class[k]!.images > 0;

/** The share of a class's held-out images that have the concept; of its training images where there are no others. */
export const shareOf = (explorer: Explorer, k: number, concept: number): number =>
  isHeldOut(explorer, k) ? explorer.held[concept * explorer.head.classes + k]! : trainedShareOf(explorer, k, concept);

/** The squared standard error of the difference between a class's held-out and training shares, were both drawn from the same images. */
export function varianceOf(explorer: Explorer, k: number, concept: number): number {
  const { images, trained } = explorer.page.per_class[k]!;
  const both = (images * shareOf(explorer, k, concept) + trained * trainedShareOf(explorer, k, concept)) / (images + trained);
  return both * (1 - both) * (1 / images + 1 / trained);
}

/** One is above and the other below 0, and they differ by more than chance explains: by more than twice the standard error. */
export const isOpposite = (held: number, trained: number, variance: number): boolean =>
  held * trained < 0 && (held - trained) ** 2 > 4 * variance;

/** Most training images of the class have the concept and most held-out ones lack it, or the other way round. */
export const isReversed = (explorer: Explorer, k: number, concept: number): boolean =>
  isOpposite(shareOf(explorer, k, concept) - 0.5, trainedShareOf(explorer, k, concept) - 0.5, varianceOf(explorer, k, concept));

export type Group = "A" | "B" | "mixed" | "empty";
export type ShareOf = typeof shareOf;

export function groupOf(explorer: Explorer, k: number, concept: number, of: ShareOf = shareOf): Group {
  const share = of(explorer, k, concept);
  if (Number.isNaN(share)) return "empty";
  if (atLeast(share, explorer.page.groups.high)) return "A";
  return atLeast(-share, -explorer.page.groups.low) ? "B" : "mixed";
}

/** A share was rounded to float32: 0.8 is >= 0.8 there too. */
const atLeast = (share: number, bound: number): boolean => share >= Math.fround(bound);

/** The classes of one group: A and mixed by falling share, B by rising. */
export function classesOf(explorer: Explorer, concept: number, group: Group, of: ShareOf = shareOf): [number, number][] {
  const found: [number, number][] = [];
  for (let k = 0; k < explorer.head.classes; k++) {
    if (groupOf(explorer, k, concept, of) === group) found.push([k, of(explorer, k, concept)]);
  }
  const sign = group === "B" ? 1 : -1;
  return found.sort((a, b) => sign * (a[1] - b[1]) || a[0] - b[0]);
}

export const wrong = (explorer: Explorer, row: number): boolean =>
  explorer.labels[row]! >= 0 && explorer.exact[row] !== explorer.labels[row];
