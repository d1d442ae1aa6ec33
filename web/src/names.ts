// Names as shown: those of the data, or what was written on this page and is kept in this browser.
import { classesOf, trainedShareOf, type Explorer } from "./explorer.ts";
import { keep, recall, Store, useStore } from "./store.ts";
import type { ConceptData } from "./types.ts";

export interface Words {
  name: string | null;
  label_1: string | null;
  label_0: string | null;
}

export type Edits = ReadonlyMap<number, Words>;

export interface Naming extends Words {
  edited: boolean;
  verified: boolean;
  reason: string;
  held_out: number | null;
  p_value: number | null;
  agreement: number | null;
  test_a: number | null;
  test_b: number | null;
  justification: string | null;
  source: string | null;
  model: string | null;
  checked_by: string | null;
  seal: string | null;
  status: string | null;
  auprc: number | null;
  f1: number | null;
  correlation: number | null;
  checked_on: string | null;
  only_class: boolean | string | null;
}

export const BY_HAND = "named by hand, not checked";
const FIELDS = ["name", "label_1", "label_0"] as const;
const CHECKS = ["held_out", "p_value", "agreement", "test_a", "test_b", "source", "model", "seal", "status"] as const;

export const edits = new Store<Edits>(new Map());
export const useEdits = (): Edits => useStore(edits);

export const kept = new Store(true); // false: this browser keeps nothing

const place = (explorer: Explorer): string => `htaf-names:${explorer.page.codes}`;

export function restore(explorer: Explorer): void {
  const read = (text: string | null): void => edits.set(parseEdits(text, explorer));
  read(recall(place(explorer)));
  addEventListener("storage", (event) => event.key === place(explorer) && read(event.newValue)); // another tab
}

function parseEdits(text: string | null, explorer: Explorer): Edits {
  const found = new Map<number, Words>();
  let stored: unknown;
  try {
    stored = JSON.parse(text ?? "{}");
  } catch {
    return found;
  }
  for (const [key, value] of Object.entries(stored ?? {})) {
    const concept = Number(key);
    if (!(concept in explorer.concepts) || typeof value !== "object" || value === null) continue;
    const words = value as Record<string, unknown>;
    const text = (field: string): string | null => (typeof words[field] === "string" && words[field] ? words[field] : null);
    const edit = { name: text("name"), label_1: text("label_1"), label_0: text("label_0") };
    if (differs(edit, explorer.concepts[concept]!)) found.set(concept, edit); // not what the data say by now
  }
  return found;
}

const differs = (words: Words, given: Words): boolean => FIELDS.some((field) => (words[field] || null) !== (given[field] || null));

function change(explorer: Explorer, changes: Iterable<[number, Words | null]>): void {
  const next = new Map(edits.get());
  for (const [concept, words] of changes) {
    const given = explorer.concepts[concept]!;
    if (words && differs(words, given)) next.set(concept, words);
    else next.delete(concept);
  }
  edits.set(next);
  kept.set(keep(place(explorer), next.size ? JSON.stringify(Object.fromEntries(next)) : null));
}

export const rename = (explorer: Explorer, concept: number, words: Words | null): void => change(explorer, [[concept, words]]);

export const discard = (explorer: Explorer): void => change(explorer, [...edits.get().keys()].map((concept) => [concept, null]));

export function namingOf(explorer: Explorer, concept: number, now: Edits = edits.get()): Naming {
  const given: ConceptData = explorer.concepts[concept]!;
  const words = now.get(concept);
  if (words) {
    const reason = words.name ? BY_HAND : "";
    const checks = { status: null, auprc: null, f1: null, correlation: null, checked_on: null, only_class: null };
    const none = { ...checks, test_a: given.test_a, test_b: given.test_b, held_out: null, p_value: null, agreement: null, justification: null, model: null, checked_by: null, seal: null };
    return { ...words, ...none, edited: true, verified: false, reason, source: "hand" };
  }
  const { status = null, auprc = null, f1 = null, correlation = null, checked_on = null, only_class = null } = given;
  return { ...given, status, auprc, f1, correlation, checked_on, only_class, edited: false, verified: given.verified === true && given.name !== null, reason: given.reason ?? "" };
}

export type State = "verified" | "unverified" | "unnamed" | "dead";

export function stateOf(explorer: Explorer, concept: number, naming: Naming): State {
  if (naming.name) return naming.verified ? "verified" : "unverified";
  return explorer.concepts[concept]!.dead ? "dead" : "unnamed";
}

/** All names as the JSON that `htaf explore --names` reads. */
export function exportJson(explorer: Explorer): string {
  const text = (value: string | null): string | null => value?.toWellFormed() ?? null;
  const names = explorer.concepts.map((_, concept) => {
    const { reason, justification, checked_by, ...rest } = namingOf(explorer, concept);
    // the groups that names are looked for in: of training images
    const size = (group: "A" | "B" | "mixed"): number => classesOf(explorer, concept, group, trainedShareOf).length;
    return {
      concept,
      verified: rest.verified,
      ...Object.fromEntries(FIELDS.map((field) => [field, text(rest[field])])),
      ...Object.fromEntries(CHECKS.map((key) => [key, rest[key]])),
      group_a: size("A"),
      group_b: size("B"),
      mixed: size("mixed"),
      reason: text(reason) ?? "",
      justification: text(justification),
      checked_by: text(checked_by),
      codes: explorer.page.codes,
    };
  });
  return `${JSON.stringify(names, null, 1)}\n`;
}

/** Names of a JSON list of objects with concept and name; what differs from the data becomes an edit. Returns what it did. */
export function importJson(explorer: Explorer, text: string): string {
  let names: unknown;
  try {
    names = JSON.parse(text.replace(/^\uFEFF/, ""));
  } catch {
    throw new Error("expected JSON, got something else");
  }
  if (!Array.isArray(names)) throw new Error("expected a list of objects with concept and name");
  const changes = new Map<number, Words>();
  for (const [number, entry] of (names as Record<string, unknown>[]).entries()) {
    const where = `entry ${number + 1}`;
    if (typeof entry !== "object" || entry === null || !("concept" in entry) || !("name" in entry)) throw new Error(`${where}: expected an object with concept and name`);
    const { concept, codes } = entry;
    if (!Number.isInteger(concept) || !((concept as number) in explorer.concepts)) {
      throw new Error(`${where}: expected a concept in 0 to ${explorer.page.concepts - 1}, got ${String(JSON.stringify(concept)).slice(0, 40)}`);
    }
    if (codes && codes !== explorer.page.codes) throw new Error(`${where}: a name of another network's concept`);
    if (changes.has(concept as number)) throw new Error(`${where}: expected one entry for each concept, got concept ${concept} again`);
    const given = explorer.concepts[concept as number]!;
    const field = (key: (typeof FIELDS)[number]): string | null => {
      const value = key in entry ? entry[key] : given[key];
      if (value !== null && typeof value !== "string") throw new Error(`${where}: expected text for ${key}`);
      return value || null;
    };
    changes.set(concept as number, { name: field("name"), label_1: field("label_1"), label_0: field("label_0") });
  }
  change(explorer, changes);
  const different = [...changes.keys()].filter((concept) => edits.get().has(concept)).length;
  return `${changes.size} ${changes.size === 1 ? "name" : "names"} read, ${different} other than the data's`;
}
