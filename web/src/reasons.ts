// Why this class: what each concept adds to its logit, or to how far it is ahead of another class, against an image that has
// every concept as often as training images have it. So a concept that is off counts too.
import { bitOf } from "./bits.ts";
import { drawsOn, weightOf, type Explorer } from "./explorer.ts";

export interface Reason {
  concept: number;
  on: boolean;
  adds: number; // (bit - rate) * (weight for the class, less the weight for the other)
}

export interface Reasons {
  start: number; // what the average image has: the logit, or how far the class is ahead
  ahead: number; // start and all that is added
  all: Reason[]; // of the concepts that the class draws on, or that tell the two classes apart, the strongest first, whatever their sign
}

export function reasonsFor(explorer: Explorer, bits: Uint8Array, k: number, than: number | null): Reasons {
  let start = explorer.head.bias[k]! - (than === null ? 0 : explorer.head.bias[than]!);
  let ahead = start;
  const all = explorer.concepts.map(({ rate }, concept): Reason => {
    const difference = weightOf(explorer, k, concept) - (than === null ? 0 : weightOf(explorer, than, concept));
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
