// Why one class and not another: what each concept adds to how far the one is ahead of the other, against an image that
// has every concept as often as training images have it.
import { bitOf } from "./bits.ts";
import { drawsOn, weightOf, type Explorer } from "./explorer.ts";

export interface Reason {
  concept: number;
  on: boolean;
  adds: number; // (bit - rate) * (weight for the class - weight for the other)
}

export interface Reasons {
  start: number; // how far the class is ahead for the average image
  ahead: number; // start and all that is added
  all: Reason[]; // of the concepts that tell the two classes apart, the strongest first, whatever their sign
}

export function reasonsFor(explorer: Explorer, bits: Uint8Array, k: number, than: number): Reasons {
  let start = explorer.head.bias[k]! - explorer.head.bias[than]!;
  let ahead = start;
  const all = explorer.concepts.map(({ rate }, concept): Reason => {
    const difference = weightOf(explorer, k, concept) - weightOf(explorer, than, concept);
    const bit = bitOf(bits, concept);
    start += rate * difference;
    ahead += bit * difference;
    return { concept, on: bit === 1, adds: (bit - rate) * difference };
  });
  const told = all.filter(({ concept }) => drawsOn(explorer, concept, k, than));
  told.sort((a, b) => Math.abs(b.adds) - Math.abs(a.adds) || a.concept - b.concept);
  return { start, ahead, all: told };
}

/** The largest and the second largest, the first of equal ones. */
export function firstTwo(values: ArrayLike<number>): [number, number] {
  let [best, second] = values[1]! > values[0]! ? [1, 0] : [0, 1];
  for (let k = 2; k < values.length; k++) {
    if (values[k]! > values[best]!) [best, second] = [k, best];
    else if (values[k]! > values[second]!) second = k;
  }
  return [best, second];
}
