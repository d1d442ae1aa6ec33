import type { JSX } from "preact";
import { keep, recall, Store, useStore } from "./store.ts";

const KEY = "htaf-theme";
const THEMES = ["auto", "light", "dark"] as const;
type Theme = (typeof THEMES)[number];

export const theme = new Store<Theme>("auto");

function choose(value: string | null): void {
  const known = THEMES.find((name) => name === value) ?? "auto";
  theme.set(known);
  document.documentElement.dataset.theme = known;
}

export const restoreTheme = (): void => choose(recall(KEY));

export function ThemeChoice(): JSX.Element {
  const now = useStore(theme);
  return (
    <label class="theme">
      <span class="hidden">Colours</span>
      <select
        value={now}
        onChange={(event) => {
          choose(event.currentTarget.value);
          keep(KEY, event.currentTarget.value);
        }}
      >
        {THEMES.map((name) => (
          <option key={name} value={name}>
            {{ auto: "Auto", light: "Light", dark: "Dark" }[name]}
          </option>
        ))}
      </select>
    </label>
  );
}
