// Two classes, and what tells them apart.
import { drawsOn, isHeldOut, isOpposite, shareOf, trainedShareOf, varianceOf, weightOf, type Explorer, type ShareOf } from "./explorer.ts";

/** (share in a - share in b) * (weight for a - weight for b), and its shares. */
export interface Separation {
  shares: [number, number];
  value: number;
}

export interface Separating {
  concept: number;
  weights: [number, number];
  held: Separation; // of held-out images; of training images where `pairIsHeldOut` is false
  trained: Separation;
  chance: boolean; // held-out images of the two differ in it by no more than chance explains: by twice the standard error of the difference
  reversed: boolean; // held-out images say the opposite, and chance does not explain it
}

/** Whether both classes have images that did not teach the network. */
export const pairIsHeldOut = (explorer: Explorer, a: number, b: number): boolean => isHeldOut(explorer, a) && isHeldOut(explorer, b);

/** Two shares of the images of a and b that one and the same share explains. */
function mayBeChance({ page }: Explorer, a: number, b: number, [x, y]: [number, number]): boolean {
  const [n, m] = [page.per_class[a]!.images, page.per_class[b]!.images];
  const both = (n * x + m * y) / (n + m);
  return (x - y) ** 2 <= 4 * both * (1 - both) * (1 / n + 1 / m);
}

/** The concepts whose weights for the two classes differ, those that separate their held-out images most first. */
export function separating(explorer: Explorer, a: number, b: number): Separating[] {
  const heldOut = pairIsHeldOut(explorer, a, b);
  const of = heldOut ? shareOf : trainedShareOf;
  const found = explorer.concepts.map((_, concept): Separating => {
    const weights: [number, number] = [weightOf(explorer, a, concept), weightOf(explorer, b, concept)];
    const separation = (share: ShareOf): Separation => {
      const shares: [number, number] = [share(explorer, a, concept), share(explorer, b, concept)];
      const value = (shares[0] - shares[1]) * (weights[0] - weights[1]);
      return { shares, value: Number.isNaN(value) ? 0 : value };
    };
    const [held, trained] = [separation(of), separation(trainedShareOf)];
    const variance = (varianceOf(explorer, a, concept) + varianceOf(explorer, b, concept)) * (weights[0] - weights[1]) ** 2;
    return { concept, weights, held, trained, chance: heldOut && mayBeChance(explorer, a, b, held.shares), reversed: isOpposite(held.value, trained.value, variance) };
  });
  const told = found.filter(({ concept }) => drawsOn(explorer, concept, a, b));
  return told.sort((x, y) => Math.abs(y.held.value) - Math.abs(x.held.value) || x.concept - y.concept);
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
