import type { ArrayData } from "./types.ts";

export class DataError extends Error {}

const KINDS = { u1: Uint8Array, i4: Int32Array, f4: Float32Array } as const;
type Kinds = typeof KINDS;

export function bytesOfBase64(text: string): Uint8Array<ArrayBuffer> {
  const quick = (Uint8Array as unknown as { fromBase64?: (text: string) => Uint8Array<ArrayBuffer> }).fromBase64;
  if (quick) return quick.call(Uint8Array, text); // browsers from 2025 on
  const plain = atob(text);
  const bytes = new Uint8Array(plain.length);
  for (let i = 0; i < plain.length; i++) bytes[i] = plain.charCodeAt(i);
  return bytes;
}

/** A little-endian array of the expected type and shape. */
export function decode<K extends keyof Kinds>(
  arrays: Record<string, ArrayData>,
  name: string,
  dtype: K,
  shape: number[],
): InstanceType<Kinds[K]> {
  const found = arrays[name];
  if (!found) throw new DataError(`expected the array ${name}, which is missing`);
  if (found.dtype !== dtype || String(found.shape) !== String(shape)) {
    throw new DataError(`expected ${name} as ${dtype} [${shape}], got ${found.dtype} [${found.shape}]`);
  }
  let bytes: Uint8Array<ArrayBuffer>;
  try {
    bytes = bytesOfBase64(found.data);
  } catch {
    throw new DataError(`expected ${name} in base64, got something else`);
  }
  const Kind = KINDS[dtype];
  const count = shape.reduce((product, size) => product * size, 1);
  if (bytes.length !== count * Kind.BYTES_PER_ELEMENT) {
    throw new DataError(`expected ${count * Kind.BYTES_PER_ELEMENT} bytes of ${name}, got ${bytes.length}`);
  }
  return new Kind(bytes.buffer) as InstanceType<Kinds[K]>; // every machine that browsers run on is little-endian
}

/** An array whose rows have any one length; `rows`: how many there must be, all leading dimensions multiplied. */
export function decodeRows<K extends keyof Kinds>(
  arrays: Record<string, ArrayData>,
  name: string,
  dtype: K,
  rows: number | null,
): { data: InstanceType<Kinds[K]>; width: number } {
  const shape = arrays[name]?.shape ?? [];
  const found = shape.slice(0, -1).reduce((product, size) => product * size, 1);
  if (arrays[name] && (shape.length < 2 || (rows !== null && found !== rows))) {
    throw new DataError(`expected ${rows ?? "any"} rows of ${name}, got the shape [${shape}]`);
  }
  return { data: decode(arrays, name, dtype, shape), width: shape.at(-1) ?? 0 };
}
