import type { JSX } from "preact";
import { useRef, useState } from "preact/hooks";
import type { Explorer } from "./explorer.ts";
import { discard, exportJson, importJson, kept, useEdits } from "./names.ts";
import { useStore } from "./store.ts";
import { plural } from "./words.ts";

function download(text: string, name: string): void {
  const address = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

/** What was renamed on this page, and how it leaves and enters. */
export function NamesBar({ explorer, always }: { explorer: Explorer; always: boolean }): JSX.Element | null {
  const now = useEdits();
  const stays = useStore(kept);
  const [told, setTold] = useState<{ text: string; bad: boolean } | null>(null);
  const input = useRef<HTMLInputElement>(null);
  if (!now.size && !always && !told) return null;
  const read = async (file: File | undefined): Promise<void> => {
    if (!file) return;
    try {
      const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
      setTold({ text: `${importJson(explorer, text)}.`, bad: false });
    } catch (error) {
      const why = error instanceof TypeError ? "expected UTF-8, got other bytes" : error instanceof Error ? error.message : String(error);
      setTold({ text: `Nothing was imported: ${why}.`, bad: true });
    }
    input.current!.value = "";
  };
  const all = plural(now.size, "edited name");
  return (
    <section class={now.size ? "names-bar edited" : "names-bar"} aria-label="Edited names">
      <p>
        {now.size > 0 && <strong>{all}</strong>}
        {now.size > 0 && (stays ? ", kept in this browser" : ", lost when this page closes: this browser keeps nothing for it. Export them")}
      </p>
      <div class="actions">
        <button type="button" class={now.size ? "main" : ""} onClick={() => download(exportJson(explorer), "names.json")}>
          Export JSON
        </button>
        <button type="button" onClick={() => input.current!.click()}>
          Import JSON
        </button>
        <input
          ref={input}
          class="hidden"
          type="file"
          accept=".json,application/json"
          tabIndex={-1}
          aria-label="A JSON file of names"
          onChange={(event) => void read(event.currentTarget.files?.[0])}
        />
        {now.size > 0 && (
          <button type="button" class="quiet" onClick={() => confirm(`Discard ${all}? The names of the data come back.`) && discard(explorer)}>
            Discard
          </button>
        )}
      </div>
      <p role="status" class={told?.bad ? "told warn" : "told"}>
        {told?.text}
      </p>
    </section>
  );
}
