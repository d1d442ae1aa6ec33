import type { JSX } from "preact";
import { useState } from "preact/hooks";
import type { Explorer } from "../explorer.ts";
import { Term } from "../glossary.tsx";
import { argmax } from "../head.ts";
import { ClassName, classText, Share } from "../parts.tsx";
import { setQuery } from "../route.ts";
import { count, decimal, item, percent, plural } from "../words.ts";
import type { WhatIf } from "./image.tsx";

const SHOWN = 6;
const MORE = 500;

/** Logits and softmax, the highest first, and what they were before the flips. */
export function Predictions({ explorer, view, reset }: { explorer: Explorer; view: WhatIf; reset: () => void }): JSX.Element {
  const [all, setAll] = useState(false);
  const label = explorer.labels[view.row]!;
  const order = [...view.logits.keys()].sort((a, b) => view.logits[b]! - view.logits[a]! || a - b);
  const was = argmax(view.before);
  const always = new Set([label, was, view.chosen]);
  const shown = all ? order.slice(0, MORE) : order.filter((k, place) => place < SHOWN || always.has(k));
  const changed = view.flips.size;
  return (
    <section aria-labelledby="prediction" class={changed ? "card prediction changed" : "card prediction"}>
      <h2 id="prediction">Prediction</h2>
      <p class="now">
        <span class="figure">
          <ClassName explorer={explorer} k={view.now} limit={40} />
        </span>{" "}
        <span class="value">{percent(view.softmax[view.now]!, 1)}</span>
      </p>
      <div class="what-if">
        {changed > 0 ? (
          <>
            <p>
              {plural(changed, "bit")} changed
              {view.now !== was && <>; it was {classText(explorer, was, 40)}</>}
            </p>
            <button type="button" onClick={reset}>
              Reset
            </button>
          </>
        ) : (
          <p class="muted">As the {item("image")} is. Flip concepts to see what would follow.</p>
        )}
      </div>
      <table class="logits">
        <caption class="hidden">Logits and softmax of the classes, highest first</caption>
        <thead>
          <tr>
            <th scope="col">Class</th>
            <th scope="col" class="num">
              <Term of="logit">Logit</Term>
            </th>
            <th scope="col">
              <Term of="softmax">Softmax</Term>
            </th>
          </tr>
        </thead>
        <tbody>
          {shown.map((k) => (
            <tr key={k} data-class={k} data-logit={view.logits[k]} class={k === view.chosen ? "chosen" : undefined}>
              <th scope="row">
                <ClassName explorer={explorer} k={k} limit={28} />
                {k === label && <span class="tag">true</span>}
                {k === was && changed > 0 && <span class="tag">was</span>}
                {k !== view.chosen && (
                  <button
                    type="button"
                    class="quiet small"
                    aria-label={`why? Contributions to ${classText(explorer, k)}`}
                    title="Show contributions"
                    onClick={() => setQuery({ class: k })}
                  >
                    why?
                  </button>
                )}
              </th>
              <td class="num">{decimal(view.logits[k]!, 2)}</td>
              <td>
                <Share value={view.softmax[k]!} digits={1} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      {explorer.head.classes > SHOWN && (
        <button type="button" class="quiet" aria-expanded={all} onClick={() => setAll(!all)}>
          {all ? "Fewer classes" : `All ${count(Math.min(MORE, explorer.head.classes))} classes`}
        </button>
      )}
    </section>
  );
}
