// The address after #: #/image/ID?flip=3,17. What a view shows stands there, so that a link brings it back.
import { Store, useStore } from "./store.ts";

export interface Route {
  view: string;
  id: string | null;
  query: Record<string, string>;
}

export function parse(hash: string): Route {
  const [path = "", query = ""] = split(hash.replace(/^#?\/?/, ""), "?");
  const [view = "", id] = split(path, "/");
  return { view: view || "overview", id: id === undefined ? null : decoded(id), query: Object.fromEntries(new URLSearchParams(query)) };
}

export function format(view: string, id: string | number | null = null, query: Record<string, string | number | null> = {}): string {
  const kept = Object.entries(query).filter(([, value]) => value !== null && value !== "");
  const words = new URLSearchParams(kept.map(([key, value]) => [key, String(value)])).toString();
  const path = view === "overview" ? "" : view + (id === null ? "" : `/${encodeURIComponent(id)}`);
  return `#/${path}${words && `?${words}`}`;
}

function split(text: string, mark: string): [string, string | undefined] {
  const at = text.indexOf(mark);
  return at < 0 ? [text, undefined] : [text.slice(0, at), text.slice(at + 1)];
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export const route = new Store<Route>({ view: "overview", id: null, query: {} });

const DELAY = 200; // ms: browsers refuse an address that changes too often
let waiting = 0;
let written = "";

/** Change what the view shows, at once; the address follows, without a new entry in the history. */
export function setQuery(changes: Record<string, string | number | null>): void {
  const now = route.get();
  const query: Record<string, string> = {};
  for (const [key, value] of Object.entries({ ...now.query, ...changes })) {
    if (value !== null && value !== "") query[key] = String(value);
  }
  route.set({ ...now, query });
  clearTimeout(waiting);
  waiting = window.setTimeout(flush, DELAY);
}

function flush(): void {
  if (!waiting) return;
  clearTimeout(waiting);
  waiting = 0;
  const { view, id, query } = route.get();
  written = format(view, id, query);
  if (location.hash === written) return;
  try {
    history.replaceState(null, "", written);
  } catch {
    location.replace(written); // a browser that gives pages opened from disk no history of their own
  }
}

const scrolled = new Map<string, number>();
let pressed = false;

/** Where a view that was just reached is to be scrolled to: the top by a link, the old place by "back". */
export function arrival(): number {
  const top = pressed ? 0 : (scrolled.get(location.hash) ?? 0);
  pressed = false;
  return top;
}

export function follow(): void {
  history.scrollRestoration = "manual";
  const read = (): void => {
    if (location.hash === written) return;
    clearTimeout(waiting);
    waiting = 0;
    written = location.hash;
    route.set(parse(location.hash));
  };
  written = location.hash;
  route.set(parse(location.hash));
  addEventListener("hashchange", read);
  addEventListener("pagehide", flush);
  const leave = (event: Event): void => {
    flush(); // before the link makes the next entry
    pressed = event.target instanceof Element && event.target.closest("a[href^='#/']") !== null;
    scrolled.set(location.hash, scrollY);
  };
  document.addEventListener("click", leave, true);
}

export const useQuery = (): Record<string, string> => useStore(route).query;
