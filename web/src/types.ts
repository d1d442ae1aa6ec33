// What `htaf explore` writes into data/*.js, as it is read.

export interface Score {
  key: string;
  label: string;
  value: number | null;
  kind: "percent" | "points" | "count" | "number";
  help: string;
}

export interface Series {
  name: string;
  counts: number[];
}

export interface ClassNumbers {
  images: number;
  accuracy: number | null;
  smooth: number | null;
  histogram: number[] | null;
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
  key: string;
  version: string;
  title: string;
  part: string;
  about: [string, string][];
  classes: string[];
  concepts: number;
  images: number;
  parts: Record<string, number>;
  groups: { low: number; high: number };
  scores: Score[];
  histogram: { series: Series[] };
  per_class: ClassNumbers[];
  notes: string[];
  codes: string; // a short name of the network, that a file of names carries
  confusions: [number, number, number][]; // true class, predicted class, images
  example: number | null; // the row of an image whose decision a few concepts explain
  off: number | null; // accuracy of the part with all concepts, as the accuracies without each were counted
  sprites: Sprites | null;
}

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
  source: string | null;
  model: string | null;
  checked_by: string | null; // who sorted by a given name; then no class was held out
  seal: string | null; // of the texts that were checked
}

export interface CounterfactualData {
  target: number;
  concepts: number[] | null;
  proven: boolean;
  lower: number;
  feasible: boolean | null;
}

export interface ImagesData {
  ids: string[];
  flips: Record<string, CounterfactualData>;
}

export interface ArrayData {
  dtype: string;
  shape: number[];
  data: string;
}
