// The counterfactual of an image: the fewest flips that make a class win. What is found one flip at a time is an upper
// bound, what each competitor needs alone a lower one. Source: Wachter, Mittelstadt and Russell (2018).
import { bitOf } from "./bits.ts";
import type { Head } from "./head.ts";

export interface Counterfactual {
  target: number;
  concepts: number[] | null; // ascending; null: none found
  feasible: boolean | null; // false: proven that none exist
  proven: boolean; // no smaller set exists
  lower: number; // no set of fewer exists
}

interface Problem {
  concepts: number;
  gap: Float64Array<ArrayBuffer>; // logit of the target minus that of each competitor
  step: Float64Array; // [competitors, concepts]: what a flip adds to it
}

const MARGIN = 1e-4;

export function counterfactual(head: Head, packed: Uint8Array, target: number, margin = MARGIN): Counterfactual {
  const problem = pose(head, packed, target);
  const lower = lowerBound(problem, margin);
  if (lower === null) return { target, concepts: null, feasible: false, proven: true, lower: 0 };
  const found = greedy(problem, margin);
  if (!found) return { target, concepts: null, feasible: null, proven: false, lower };
  return { target, concepts: found, feasible: true, proven: found.length === lower, lower };
}

function pose(head: Head, packed: Uint8Array, target: number): Problem {
  const { classes, concepts, weight, bias } = head;
  const gap = new Float64Array(classes - 1);
  const step = new Float64Array((classes - 1) * concepts);
  for (let k = 0, row = 0; k < classes; k++) {
    if (k === target) continue;
    let sum = bias[target]! - bias[k]!;
    for (let j = 0; j < concepts; j++) {
      const difference = weight[target * concepts + j]! - weight[k * concepts + j]!;
      const bit = bitOf(packed, j);
      if (bit) sum += difference;
      step[row * concepts + j] = bit ? -difference : difference;
    }
    gap[row++] = sum;
  }
  return { concepts, gap, step };
}

/** The most flips that a single competitor needs; null where one can never be passed. */
export function lowerBound({ concepts, gap, step }: Problem, margin: number): number | null {
  let most = 0;
  for (let k = 0; k < gap.length; k++) {
    const enough = margin - 1e-9; // rounding of the sum must never make the bound too high
    let reach = gap[k]!;
    if (reach >= enough) continue;
    const helpful = step.slice(k * concepts, (k + 1) * concepts).sort();
    let used = 0;
    while (reach < enough && used < concepts && helpful[concepts - 1 - used]! > 0) reach += helpful[concepts - 1 - used++]!;
    if (reach < enough) return null;
    most = Math.max(most, used);
  }
  return most;
}

/** Flips one at a time, each the one that lowers the summed shortfall most; then those not needed are undone. */
function greedy({ concepts, gap, step }: Problem, margin: number): number[] | null {
  const rows = gap.length;
  const chosen = new Uint8Array(concepts);
  const after = new Float64Array(concepts);
  let now = gap.slice();
  let short = shortfall(now, margin);
  while (short > 0) {
    after.fill(0);
    for (let k = 0; k < rows; k++) {
      const need = margin - now[k]!;
      for (let j = 0, at = k * concepts; j < concepts; j++, at++) {
        const left = need - step[at]!;
        if (left > 0) after[j]! += left;
      }
    }
    let best = -1;
    for (let j = 0; j < concepts; j++) if (!chosen[j] && (best < 0 || after[j]! < after[best]!)) best = j;
    if (best < 0 || after[best]! >= short) return null;
    chosen[best] = 1;
    now = withFlips(gap, step, chosen);
    short = shortfall(now, margin);
  }
  for (let j = 0; j < concepts; j++) {
    if (!chosen[j]) continue;
    chosen[j] = 0;
    if (shortfall(withFlips(gap, step, chosen), margin) > 0) chosen[j] = 1;
  }
  return [...chosen.keys()].filter((j) => chosen[j]);
}

function withFlips(gap: Float64Array<ArrayBuffer>, step: Float64Array, chosen: Uint8Array): Float64Array<ArrayBuffer> {
  const concepts = chosen.length;
  const on = [...chosen.keys()].filter((j) => chosen[j]);
  return gap.map((value, k) => on.reduce((sum, j) => sum + step[k * concepts + j]!, value));
}

function shortfall(now: Float64Array, margin: number): number {
  return now.reduce((sum, value) => sum + Math.max(margin - value, 0), 0);
}
