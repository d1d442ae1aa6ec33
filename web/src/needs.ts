// What is known of single images comes in parts, each when a view first needs it: 100,000 images open as fast as 100.
import { useEffect } from "preact/hooks";
import { DataError, decode } from "./codec.ts";
import type { Explorer } from "./explorer.ts";
import { request } from "./loading.ts";
import { opened } from "./maps.ts";
import { Store, useStore } from "./store.ts";
import type { ArrayData, DoubtfulData } from "./types.ts";

/** rows: labels and predictions. ids. doubtful: labels that may be wrong. bits, texts: of all images, or with @ROW of those around one. maps@ROW: of one image. */
export type Need = "rows" | "ids" | "doubtful" | "bits" | "texts" | `bits@${number}` | `texts@${number}` | `maps@${number}`;

const arrived = new Store(0);
const failed = new Store<string | null>(null);
const loaded = new Set<string>();
const asked = new Map<string, Promise<void>>();

const numbered = (name: string, chunk: number): string => `${name}-${String(chunk).padStart(4, "0")}`;

/** The files that hold it. */
function filesOf({ page }: Explorer, need: Need): string[] {
  const chunks = (size: number): number => Math.ceil(page.images / size);
  if (need === "ids" || need === "bits" || need === "texts") return Array.from({ length: chunks(page.chunks[need]) }, (_, chunk) => numbered(need, chunk));
  if (need === "rows" || need === "doubtful") return [need];
  if (need.startsWith("maps@")) return [`maps-${need.slice(5).padStart(6, "0")}`];
  const [name, row] = need.split("@") as ["bits" | "texts", string];
  return [numbered(name, Math.floor(Number(row) / page.chunks[name]))];
}

export const has = (explorer: Explorer, needs: Need[]): boolean => needs.every((need) => filesOf(explorer, need).every((file) => loaded.has(file)));

/** Load what is not there yet; the same file is asked for once. */
export function need(explorer: Explorer, needs: Need[]): Promise<void> {
  const files = [...new Set(needs.flatMap((one) => filesOf(explorer, one)))];
  const waiting = files.map((file) => {
    let coming = asked.get(file);
    if (!coming) {
      coming = request(file).then((value) => {
        put(explorer, file, value);
        loaded.add(file);
      });
      asked.set(file, coming);
    }
    return coming;
  });
  return Promise.all(waiting).then(() => undefined);
}

function put(explorer: Explorer, file: string, value: unknown): void {
  if (typeof value !== "object" || value === null) throw new DataError(`expected an object in data/${file}.js`);
  const images = explorer.page.images;
  if (file === "doubtful") explorer.doubtful = value as DoubtfulData;
  else if (file.startsWith("maps-")) explorer.maps.set(Number(file.slice(5)), opened(explorer, value as Record<string, ArrayData>));
  else if (file === "rows") {
    const arrays = value as Record<string, ArrayData>;
    explorer.labels = decode(arrays, "labels", "i4", [images]);
    explorer.exact = decode(arrays, "exact", "i4", [images]);
    explorer.smooth = decode(arrays, "smooth", "i4", [images]);
    explorer.places = decode(arrays, "places", "f4", [images, 2]);
  } else {
    const name = file.slice(0, -5) as "bits" | "ids" | "texts";
    const size = explorer.page.chunks[name];
    const start = Number(file.slice(-4)) * size;
    const count = Math.min(size, images - start);
    if (name === "bits") explorer.bits.set(decode(value as Record<string, ArrayData>, "bits", "u1", [count, explorer.width]), start * explorer.width);
    else {
      if (!Array.isArray(value) || value.length !== count) throw new DataError(`expected ${count} ${name} in data/${file}.js`);
      value.forEach((text: string, place) => (explorer[name][start + place] = text));
      if (name === "texts") return;
      for (let row = start + count - 1; row >= start; row--) {
        const before = explorer.rowOf.get(explorer.ids[row]!);
        if (before === undefined || before > row) explorer.rowOf.set(explorer.ids[row]!, row); // the first of equal ids
      }
    }
  }
}

/** Whether all is there; it is loaded where not, and the component is drawn again when it has come. */
export function useNeeds(explorer: Explorer, needs: Need[]): boolean {
  useStore(arrived);
  const ready = has(explorer, needs);
  useEffect(() => {
    if (ready) return;
    need(explorer, needs).then(
      () => arrived.set(arrived.get() + 1),
      (error) => failed.set(error instanceof Error ? error.message : String(error)),
    );
  }, [explorer, ready, needs.join()]);
  return ready;
}

export const useFailure = (): string | null => useStore(failed);
