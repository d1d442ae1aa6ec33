import assert from "node:assert/strict";
import { test } from "node:test";
import { bitOf, distances, flipped, nearest } from "../src/bits.ts";
import { DataError, decode } from "../src/codec.ts";
import { permutation } from "../src/random.ts";

const random = (count: number, seed: number): Uint8Array => Uint8Array.from(permutation(count, seed), (value) => value & 255);

test("bits: the least significant first", () => {
  const packed = Uint8Array.of(0b00000101, 0b10000000);
  assert.deepEqual([0, 1, 2, 3, 15].map((concept) => bitOf(packed, concept)), [1, 0, 1, 0, 1]);
  assert.deepEqual([...flipped(packed, [1, 15])], [0b00000111, 0]);
  assert.deepEqual([...packed], [5, 128]);
});

test("distances and nearest rows are those of strings of bits", () => {
  const [rows, width] = [50, 5];
  const all = random(rows * width, 3);
  const text = (bytes: Uint8Array): string => Array.from(bytes, (byte) => byte.toString(2).padStart(8, "0")).join("");
  const query = all.slice(7 * width, 8 * width);
  const expected = Array.from({ length: rows }, (_, row) => {
    const other = text(all.slice(row * width, (row + 1) * width));
    return [...text(query)].filter((bit, i) => bit !== other[i]).length;
  });
  assert.deepEqual([...distances(query, all, rows)], expected);
  const order = expected.map((far, row) => [row, far] as const).filter(([row]) => row !== 7);
  order.sort((a, b) => a[1] - b[1] || a[0] - b[0]);
  for (const count of [0, 1, 6, 49, 80]) assert.deepEqual(nearest(query, all, rows, count, 7), order.slice(0, count));
});

test("arrays of another type, shape or length are refused", () => {
  const data = btoa(String.fromCharCode(...new Uint8Array(Float32Array.of(1.5, -2).buffer)));
  assert.deepEqual([...decode({ a: { dtype: "f4", shape: [2], data } }, "a", "f4", [2])], [1.5, -2]);
  for (const [dtype, shape, text] of [["i4", [2], data], ["f4", [3], data], ["f4", [2], data.slice(4)], ["f4", [2], "?"]] as const) {
    assert.throws(() => decode({ a: { dtype, shape: [...shape], data: text } }, "a", "f4", [2]), DataError);
  }
  assert.throws(() => decode({}, "a", "f4", [2]), /a, which is missing/);
});

test("a permutation holds each number once and is the same for a seed", () => {
  assert.deepEqual([...permutation(100, 5)].sort((a, b) => a - b), Array.from({ length: 100 }, (_, i) => i));
  assert.deepEqual(permutation(100, 5), permutation(100, 5));
  assert.notDeepEqual(permutation(100, 5), permutation(100, 6));
});
