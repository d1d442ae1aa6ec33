import { bitOf } from "./bits.ts";

/** The linear head: logits = weight @ bits + bias. */
export interface Head {
  classes: number;
  concepts: number;
  weight: Float32Array; // [classes, concepts]
  bias: Float32Array;
}

/** In float64: JavaScript adds no other way. */
export function logits(head: Head, packed: Uint8Array): Float64Array {
  const result = new Float64Array(head.classes);
  const on: number[] = [];
  for (let concept = 0; concept < head.concepts; concept++) if (bitOf(packed, concept)) on.push(concept);
  for (let k = 0; k < head.classes; k++) {
    let sum = 0;
    const row = k * head.concepts;
    for (const concept of on) sum += head.weight[row + concept]!;
    result[k] = sum + head.bias[k]!;
  }
  return result;
}

export function softmax(values: Float64Array): Float64Array {
  const top = values.reduce((a, b) => Math.max(a, b), -Infinity);
  const exps = values.map((value) => Math.exp(value - top));
  const sum = exps.reduce((a, b) => a + b, 0);
  return exps.map((value) => value / sum);
}

/** The first of the largest, as numpy's. */
export function argmax(values: ArrayLike<number>): number {
  let best = 0;
  for (let i = 1; i < values.length; i++) if (values[i]! > values[best]!) best = i;
  return best;
}
