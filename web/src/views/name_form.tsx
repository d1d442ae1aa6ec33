import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { announce } from "../announce.ts";
import type { Explorer } from "../explorer.ts";
import { rename, type Naming } from "../names.ts";
import { item } from "../words.ts";

type Field = "name" | "label_1" | "label_0";
const LABELS: [Field, string][] = [
  ["name", "Name"],
  ["label_1", "Images with it (label 1)"],
  ["label_0", "Images without it (label 0)"],
];

/** Rename one concept; kept in this browser. */
export function NameForm({ explorer, concept, naming }: { explorer: Explorer; concept: number; naming: Naming }): JSX.Element {
  const [draft, setDraft] = useState<Record<Field, string> | null>(null);
  const begin = (): void => setDraft({ name: naming.name ?? "", label_1: naming.label_1 ?? "", label_0: naming.label_0 ?? "" });
  const reset = (): void => {
    rename(explorer, concept, null);
    announce("The name of the data is back.");
  };
  if (!draft) {
    return (
      <p class="actions">
        <button type="button" onClick={begin}>
          Edit name
        </button>
        {naming.edited && (
          <button type="button" class="quiet" onClick={reset}>
            Reset to the data's name
          </button>
        )}
      </p>
    );
  }
  const save = (event: Event): void => {
    event.preventDefault();
    const words = { name: draft.name.trim() || null, label_1: draft.label_1.trim() || null, label_0: draft.label_0.trim() || null };
    rename(explorer, concept, words);
    setDraft(null);
    announce("The name is saved in this browser.");
  };
  return (
    <form class="name-form" onSubmit={save} onKeyDown={(event) => event.key === "Escape" && setDraft(null)}>
      {LABELS.map(([field, label], index) => (
        <label key={field} class="field">
          <span>{item(label)}</span>
          <input
            type="text"
            name={field}
            dir="auto"
            value={draft[field]}
            ref={(element) => void (index === 0 && element && element.dataset.ready !== "1" && ((element.dataset.ready = "1"), element.focus()))}
            onInput={(event) => setDraft({ ...draft, [field]: event.currentTarget.value })}
          />
        </label>
      ))}
      <p class="actions">
        <button type="submit" class="main">
          Save name
        </button>
        <button type="button" class="quiet" onClick={() => setDraft(null)}>
          Cancel
        </button>
      </p>
    </form>
  );
}
