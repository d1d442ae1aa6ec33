// Two classes, and what tells them apart.
import { shareOf, weightOf, type Explorer } from "./explorer.ts";

export interface Separating {
  concept: number;
  shares: [number, number];
  weights: [number, number];
  separation: number; // (share in a - share in b) * (weight for a - weight for b)
}

/** All concepts, those that separate the two classes most first. */
export function separating(explorer: Explorer, a: number, b: number): Separating[] {
  const found = explorer.concepts.map((_, concept): Separating => {
    const shares: [number, number] = [shareOf(explorer, a, concept), shareOf(explorer, b, concept)];
    const weights: [number, number] = [weightOf(explorer, a, concept), weightOf(explorer, b, concept)];
    const separation = (shares[0] - shares[1]) * (weights[0] - weights[1]);
    return { concept, shares, weights, separation: Number.isNaN(separation) ? 0 : separation };
  });
  return found.sort((x, y) => Math.abs(y.separation) - Math.abs(x.separation) || x.concept - y.concept);
}

/** How many images of a class are predicted as each: [class, images], of the whole part. */
export function confusionOf(explorer: Explorer): Map<number, Map<number, number>> {
  const found = new Map<number, Map<number, number>>();
  const { confusion } = explorer;
  for (let at = 0; at < confusion.length; at += 3) {
    const of = found.get(confusion[at]!) ?? new Map<number, number>();
    of.set(confusion[at + 1]!, confusion[at + 2]!);
    found.set(confusion[at]!, of);
  }
  return found;
}
