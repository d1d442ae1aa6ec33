import { render } from "preact";
import { App } from "./app.tsx";
import { flipped } from "./bits.ts";
import { bitsOf, open, type Explorer } from "./explorer.ts";
import { counterfactual, type Counterfactual } from "./counterfactuals.ts";
import { logits } from "./head.ts";
import { load } from "./loading.ts";
import { need } from "./needs.ts";
import { restore } from "./names.ts";
import { follow } from "./route.ts";
import { restoreTheme } from "./theme.tsx";
import "./style/index.css";

declare global {
  interface Window {
    /** For tests and for the curious, in the browser's console: the decoded data, logits in float64, the search for flips. */
    htafExplorer?: {
      data: Explorer;
      logits: (row: number, flips?: number[]) => Promise<number[]>;
      counterfactual: (row: number, target: number) => Promise<Counterfactual>;
    };
  }
}

function Failed({ error }: { error: unknown }) {
  document.title = "Concept explorer: the data cannot be read";
  return (
    <main class="starting">
      <h1>The data cannot be read</h1>
      <p role="alert">{error instanceof Error ? error.message : String(error)}.</p>
      <p>
        Copy the whole folder that <code>htaf explore</code> wrote, with <code>data/</code> inside, or write it again.
      </p>
    </main>
  );
}

restoreTheme();
const place = document.getElementById("app")!;
load().then(
  (found) => {
    try {
      const explorer = open(found);
      restore(explorer);
      follow();
      window.htafExplorer = {
        data: explorer,
        logits: async (row, flips = []) => {
          await need(explorer, [`bits@${row}`]);
          return [...logits(explorer.head, flipped(bitsOf(explorer, row), flips))];
        },
        counterfactual: async (row, target) => {
          await need(explorer, [`bits@${row}`]);
          return counterfactual(explorer.head, bitsOf(explorer, row), target);
        },
      };
      place.replaceChildren();
      render(<App explorer={explorer} />, place);
    } catch (error) {
      fail(error);
    }
  },
  (error) => fail(error),
);

function fail(error: unknown): void {
  place.replaceChildren();
  render(<Failed error={error} />, place);
}
