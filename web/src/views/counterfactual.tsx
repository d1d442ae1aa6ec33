import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { bitOf } from "../bits.ts";
import type { Explorer } from "../explorer.ts";
import { counterfactual, type Counterfactual } from "../counterfactuals.ts";
import { Term } from "../glossary.tsx";
import { argmax } from "../head.ts";
import { Choice, classText, ConceptName } from "../parts.tsx";
import { plural } from "../words.ts";
import type { WhatIf } from "./image.tsx";

const QUICK = 2_000_000; // weights: more are searched only when asked

interface Props {
  explorer: Explorer;
  view: WhatIf;
  apply: (flips: Iterable<number>, said: string) => void;
}

/** The label of a misclassified image, else the class that comes second. */
function firstTarget(explorer: Explorer, view: WhatIf): number {
  const label = explorer.labels[view.row]!;
  const was = argmax(view.before);
  if (label >= 0 && label !== was) return label;
  const others = view.before.map((value, k) => (k === was ? -1 : value));
  return argmax(others);
}

function said({ concepts, feasible, proven, lower }: Counterfactual): string {
  if (concepts?.length === 0) return "It wins already.";
  if (concepts && proven) return `${plural(concepts.length, "flip")}; proven: no fewer would do.`;
  if (concepts) return `${plural(concepts.length, "flip")} will do; at least ${lower} ${lower === 1 ? "is" : "are"} needed.`;
  return feasible === false ? "No flips can make this class win; this is proven." : "No flips were found that make this class win.";
}

export function CounterfactualView({ explorer, view, apply }: Props): JSX.Element {
  const [target, setTarget] = useState(() => firstTarget(explorer, view));
  const [asked, setAsked] = useState(explorer.head.weight.length <= QUICK);
  const found = useMemo((): Counterfactual | null => (asked ? counterfactual(explorer.head, view.given, target) : null), [explorer, view.given, target, asked]);
  const classes = useMemo(
    () => explorer.page.classes.map((_, k): [string, string] => [String(k), classText(explorer, k, 50)]),
    [explorer],
  );
  if (explorer.head.classes < 2) return <></>;
  const concepts = found?.concepts ?? [];
  const applied = concepts.length > 0 && concepts.length === view.flips.size && concepts.every((concept) => view.flips.has(concept));
  return (
    <section aria-labelledby="counterfactual" class="counterfactual">
      <h2 id="counterfactual">
        Counterfactual: the fewest flips <Term of="counterfactual" />
      </h2>
      <div class="tools">
        <Choice label="To make it" value={String(target)} options={classes} onChange={(value) => setTarget(Number(value))} />
        {found ? (
          <p class="found" role="status" data-lower={found.lower} data-proven={found.proven}>
            {said(found)}
          </p>
        ) : (
          <button type="button" onClick={() => setAsked(true)}>
            Search
          </button>
        )}
      </div>
      {concepts.length > 0 && (
        <>
          <ul class="chips">
            {concepts.map((concept) => (
              <li key={concept} class={view.flips.has(concept) ? "done" : undefined}>
                <ConceptName explorer={explorer} concept={concept} limit={32} />
                <span class="turn">{bitOf(view.given, concept) ? "off" : "on"}</span>
              </li>
            ))}
          </ul>
          <button type="button" class="main" disabled={applied} onClick={() => apply(concepts, `${plural(concepts.length, "flip")} applied.`)}>
            {applied ? "Applied" : "Apply these flips"}
          </button>
        </>
      )}
    </section>
  );
}
