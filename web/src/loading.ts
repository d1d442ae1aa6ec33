// Data comes as classic scripts that call htafData(name, value): a page opened from disk may not fetch.
import { DataError } from "./codec.ts";

declare global {
  interface Window {
    htafData?: (name: string, value: unknown) => void;
  }
}

const NAMES = ["page", "concepts", "arrays", "images"] as const;

export function load(): Promise<Record<string, unknown>> {
  const found: Record<string, unknown> = {};
  window.htafData = (name, value) => {
    found[name] = value;
  };
  return Promise.all(NAMES.map((name) => script(name, found))).then(() => found);
}

function script(name: string, found: Record<string, unknown>): Promise<void> {
  return new Promise((resolve, reject) => {
    const element = document.createElement("script");
    const file = `data/${name}.js`;
    element.src = file;
    element.onload = () => {
      if (name in found) resolve();
      else reject(new DataError(`${file} is damaged: it holds no data that can be read`));
    };
    element.onerror = () => reject(new DataError(`${file} is missing beside this page`));
    document.head.append(element);
  });
}
