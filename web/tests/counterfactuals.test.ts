import assert from "node:assert/strict";
import { test } from "node:test";
import { bitOf, flipped } from "../src/bits.ts";
import { counterfactual } from "../src/counterfactuals.ts";
import { argmax, logits, softmax, type Head } from "../src/head.ts";
import { permutation } from "../src/random.ts";

function made(seed: number): [Head, Uint8Array] {
  const [classes, concepts] = [4, 8];
  const values = (count: number, more: number): Float32Array =>
    Float32Array.from(permutation(count, seed + more), (value) => (value - (count - 1) / 2) / 7);
  return [{ classes, concepts, weight: values(classes * concepts, 0), bias: values(classes, 1000) }, Uint8Array.of((seed * 37) & 255)];
}

const subsets = (concepts: number): number[][] =>
  Array.from({ length: 1 << concepts }, (_, mask) => [...Array(concepts).keys()].filter((j) => (mask >> j) & 1));

function wins(head: Head, packed: Uint8Array, target: number): boolean {
  const values = logits(head, packed);
  return values.every((value, k) => k === target || values[target]! - value >= 1e-4);
}

test("logits are sums over the bits", () => {
  const [head, packed] = made(5);
  const expected = Array.from({ length: head.classes }, (_, k) => {
    let sum = head.bias[k]!;
    for (let j = 0; j < 8; j++) sum += bitOf(packed, j) * head.weight[k * 8 + j]!;
    return sum;
  });
  logits(head, packed).forEach((value, k) => assert.ok(Math.abs(value - expected[k]!) < 1e-12));
  const shares = softmax(Float64Array.of(1000, 1000, -1000));
  assert.deepEqual([...shares], [0.5, 0.5, 0]);
});

test("bounds enclose the fewest flips, and are proven where they say so", () => {
  let proven = 0;
  for (let seed = 0; seed < 60; seed++) {
    const [head, packed] = made(seed);
    for (let target = 0; target < head.classes; target++) {
      const found = counterfactual(head, packed, target);
      const sizes = subsets(8).filter((flips) => wins(head, flipped(packed, flips), target)).map((flips) => flips.length);
      const best = sizes.length ? Math.min(...sizes) : null;
      if (best === null) assert.equal(found.concepts, null);
      else assert.ok(found.lower <= best && found.feasible !== false);
      if (found.feasible === false) assert.equal(best, null);
      if (!found.concepts) continue;
      const after = flipped(packed, found.concepts);
      assert.ok(wins(head, after, target) && argmax(logits(head, after)) === target);
      assert.ok(found.concepts.length >= best!);
      if (found.proven) assert.equal(found.concepts.length, best);
      proven += Number(found.proven);
    }
  }
  assert.ok(proven > 60);
});
