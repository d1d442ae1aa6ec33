// What `htaf explore` writes into data/*.js, as it is read.

export interface Score {
  key: string;
  label: string;
  value: number | null;
  kind: "percent" | "points" | "count" | "number";
  help: string;
}

export interface ClassNumbers {
  images: number; // of the part
  trained: number; // training images
  accuracy: number | null;
  smooth: number | null;
}

export interface Sprites {
  width: number;
  height: number;
  columns: number;
  rows: number;
  files: string[];
}

export interface PageData {
  format: number;
  version: string;
  title: string;
  part: string;
  items: { kind: string; texts: boolean }; // what an image is here, and whether it comes as a text
  about: [string, string][];
  classes: string[];
  concepts: number;
  images: number;
  parts: Record<string, number>;
  groups: { low: number; high: number };
  few: number; // images of a class, below which a share says little
  scores: Score[];
  per_class: ClassNumbers[];
  notes: string[];
  codes: string; // a short name of the network, that a file of names carries
  example: number | null; // the row of an image whose decision a few concepts explain
  sprites: Sprites | null;
  chunks: { bits: number; ids: number; texts: number }; // images in one file of bits, of ids, of texts
  originals: { folder: string; rows: number[] } | null; // images that are there at full size
  maps?: MapsData | null; // none in pages of earlier versions
}

/** Where in its images the network sees a concept. */
export interface MapsData {
  rows: number[]; // images that have maps, each in data/maps-ROW.js
  grid: [number, number]; // rows and columns of a map
  size: [number, number]; // height and width of an image as the network sees it
  colours: { for: Colour; against: Colour };
  strength: number; // of the strongest colour over the picture
}

export type Colour = [number, number, number];

export interface ConceptData {
  rate: number;
  importance: number;
  spread: number;
  rank: number;
  dead: boolean;
  accuracy: number | null;
  balanced: number | null;
  name: string | null;
  label_1: string | null;
  label_0: string | null;
  justification: string | null;
  verified: boolean | null;
  reason: string | null;
  held_out: number | null;
  p_value: number | null;
  agreement: number | null;
  test_a: number | null; // mean share of test images with the bit, over the classes of the groups of the name
  test_b: number | null;
  source: string | null;
  model: string | null;
  checked_by: string | null; // who sorted by a given name; then no class was held out
  status?: string | null; // what the check came to
  auprc?: number | null;
  f1?: number | null;
  correlation?: number | null;
  checked_on?: string | null; // "pictures": held-out images were sorted
  only_class?: boolean | string | null; // true: the name may say no more than the class does
  seal: string | null; // of the texts that were checked
}

export interface DoubtedImage {
  id: string;
  label: string;
  prediction: string;
  part: string;
  row: number; // on this page; -1: it is not here
}

/** Images whose labels are doubtful, of all parts, each beside the one that speaks against it. */
export interface DoubtfulData {
  pairs: { kind: "copy" | "class"; image: DoubtedImage; like: DoubtedImage }[];
  compared: number; // images
  sprites: Sprites | null; // two for each pair
}

export interface ArrayData {
  dtype: string;
  shape: number[];
  data: string;
}
