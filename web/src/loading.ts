// Data comes as classic scripts that call htafData(name, value): a page opened from disk may not fetch.
import { DataError } from "./codec.ts";

declare global {
  interface Window {
    htafData?: (name: string, value: unknown) => void;
  }
}

const NAMES = ["page", "concepts", "arrays"] as const;
const found = new Map<string, unknown>();

/** The value of data/NAME.js. */
export function request(name: string): Promise<unknown> {
  window.htafData ??= (said, value) => void found.set(said, value);
  return new Promise((resolve, reject) => {
    const element = document.createElement("script");
    const file = `data/${name}.js`;
    element.src = file;
    element.onload = () => {
      if (!found.has(name)) return reject(new DataError(`${file} is damaged: it holds no data that can be read`));
      resolve(found.get(name));
      found.delete(name); // decoded by whoever asked; the text need not stay
      element.remove();
    };
    element.onerror = () => reject(new DataError(`${file} is missing beside this page`));
    document.head.append(element);
  });
}

/** What every view needs. */
export async function load(): Promise<Record<string, unknown>> {
  const values = await Promise.all(NAMES.map(request));
  return Object.fromEntries(NAMES.map((name, place) => [name, values[place]]));
}
