import type { JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { bitOf, flipped } from "../bits.ts";
import { bitsOf, usedConcepts, type Explorer } from "../explorer.ts";
import { Term } from "../glossary.tsx";
import { argmax, logits } from "../head.ts";
import { Choice, ClassName, ConceptName, conceptText } from "../parts.tsx";
import { Grid, Thumb } from "../pictures.tsx";
import { setQuery, useQuery } from "../route.ts";
import { count, item, percent, plural, signed } from "../words.ts";

const AT_ONCE = 1500; // images between two breaths
const SHOWN = 12;
const CLASSES = 12;
const OPTIONS = 1000; // concepts in a list to choose from

const numbers = (text: string, below: number): number[] =>
  [...new Set(text.split(",").filter((word) => /^\d+$/.test(word)).map(Number))].filter((n) => n < below).sort((a, b) => a - b);

/** What the exact network predicts of all images on this page when some concepts are off; null while it is counted. */
function usePredictions(explorer: Explorer, off: number[]): { predicted: Int32Array | null; done: number } {
  const [found, setFound] = useState<{ key: string; predicted: Int32Array | null; done: number }>({ key: "", predicted: null, done: 0 });
  const key = off.join();
  useEffect(() => {
    const predicted = explorer.exact.slice();
    let row = 0;
    let waiting = 0;
    const some = (): void => {
      for (const end = Math.min(row + AT_ONCE, explorer.page.images); row < end; row++) {
        const bits = bitsOf(explorer, row);
        const on = off.filter((concept) => bitOf(bits, concept));
        if (on.length) predicted[row] = argmax(logits(explorer.head, flipped(bits, on)));
      }
      const whole = row >= explorer.page.images;
      setFound({ key, predicted: whole ? predicted : null, done: row });
      if (!whole) waiting = window.setTimeout(some);
    };
    some();
    return () => clearTimeout(waiting);
  }, [explorer, key]);
  return found.key === key ? found : { predicted: null, done: 0 };
}

/** Some concepts off in all images: the new accuracy, and what changes. */
export function Off({ explorer }: { explorer: Explorer }): JSX.Element {
  const { off: text = "" } = useQuery();
  const { page, labels, exact } = explorer;
  const off = useMemo(() => numbers(text, page.concepts), [text, page.concepts]);
  const { predicted, done } = usePredictions(explorer, off);
  const set = (concepts: number[]): void => setQuery({ off: [...new Set(concepts)].join(",") });
  const options = useMemo((): [string, string][] => {
    const all = usedConcepts(explorer).sort((a, b) => explorer.concepts[a]!.rank - explorer.concepts[b]!.rank);
    return [["", "–"], ...all.slice(0, OPTIONS).map((concept): [string, string] => [String(concept), conceptText(explorer, concept)])];
  }, [explorer]);
  const found = useMemo(() => {
    if (!predicted) return null;
    let [known, before, after, changed] = [0, 0, 0, 0];
    const classes = new Map<number, [number, number, number]>();
    const [broken, mended]: [number[], number[]] = [[], []];
    for (let row = 0; row < page.images; row++) {
      const [label, was, now] = [labels[row]!, exact[row]!, predicted[row]!];
      if (label >= 0 && was === label && now !== label) broken.push(row);
      if (label >= 0 && was !== label && now === label) mended.push(row);
      if (was !== now) changed++;
      if (label < 0) continue;
      known++;
      const of = classes.get(label) ?? [0, 0, 0];
      of[0]++;
      if (was === label) (before++, of[1]++);
      if (now === label) (after++, of[2]++);
      classes.set(label, of);
    }
    const moved = [...classes].filter(([, [, a, b]]) => a !== b).sort(([k, [n, a, b]], [l, [m, c, d]]) => (b - a) / n - (d - c) / m || k - l);
    return { known, before, after, changed, broken, mended, moved };
  }, [explorer, predicted]);
  return (
    <>
      <header class="view-head">
        <h1 tabIndex={-1}>Concepts off in all {item("images")}</h1>
        <p class="lead">What the classifier would be without them: their bits are 0 whatever the {item("image")}.</p>
      </header>
      <div class="tools">
        <Choice label="Switch off" value="" options={options} onChange={(value) => value && set([...off, Number(value)])} />
        {off.length > 0 && (
          <button type="button" onClick={() => set([])}>
            All on again
          </button>
        )}
      </div>
      <ul class="chips" aria-label="Concepts that are off">
        {off.map((concept) => (
          <li key={concept} class="done">
            <ConceptName explorer={explorer} concept={concept} limit={32} />
            <button type="button" class="quiet small" aria-label={`${conceptText(explorer, concept)} on again`} onClick={() => set(off.filter((one) => one !== concept))}>
              ×
            </button>
          </li>
        ))}
      </ul>
      <section aria-labelledby="result">
        <h2 id="result">
          <Term of="accuracy">Accuracy</Term>
        </h2>
        <p role="status" class="muted">
          {found
            ? `Of ${plural(found.known, item("image"))} of this page${page.images > found.known ? " that have a class" : ""}; ${plural(found.changed, "prediction")} changed.`
            : `${count(done)} of ${count(page.images)} ${item("images")}…`}
        </p>
        {found && (
          <dl class="scores" data-before={found.before} data-after={found.after} data-known={found.known}>
            <div class="score">
              <dt>All concepts</dt>
              <dd class="figure">{percent(found.before / Math.max(1, found.known), 1)}</dd>
            </div>
            <div class="score">
              <dt>{off.length ? `Without ${plural(off.length, "concept")}` : "Nothing is off"}</dt>
              <dd class="figure">{percent(found.after / Math.max(1, found.known), 1)}</dd>
            </div>
            <div class="score">
              <dt>Difference</dt>
              <dd class="figure">{signed((100 * (found.after - found.before)) / Math.max(1, found.known), 1)} pts</dd>
            </div>
          </dl>
        )}
      </section>
      {found && off.length > 0 && (
        <>
          <section aria-labelledby="moved">
            <h2 id="moved">Classes that change most</h2>
            {found.moved.length === 0 && <p class="empty">None.</p>}
            <ul class="rows">
              {[...found.moved.slice(0, CLASSES), ...found.moved.slice(CLASSES).slice(-3)].map(([k, [images, before, after]]) => (
                <li key={k}>
                  <ClassName explorer={explorer} k={k} limit={48} />
                  <span class="num">
                    {percent(before / images)} → {percent(after / images)} <span class="muted">of {count(images)}</span>
                  </span>
                </li>
              ))}
            </ul>
          </section>
          <section aria-labelledby="changed">
            <h2 id="changed">{item("Images")} that change</h2>
            <div class="columns">
              {(
                [
                  ["Now wrong", found.broken],
                  ["Now right", found.mended],
                ] as const
              ).map(([title, rows]) => (
                <div key={title}>
                  <h3>
                    {title} <span class="muted">{count(rows.length)}</span>
                  </h3>
                  {rows.length === 0 && <p class="empty">None.</p>}
                  <Grid explorer={explorer}>
                    {rows.slice(0, SHOWN).map((row) => (
                      <Thumb key={row} explorer={explorer} row={row}>
                        <ClassName explorer={explorer} k={labels[row]!} limit={24} />
                        <span class="wrong">
                          {title === "Now wrong" ? "now " : "was "}
                          <ClassName explorer={explorer} k={title === "Now wrong" ? predicted![row]! : exact[row]!} limit={24} />
                        </span>
                      </Thumb>
                    ))}
                  </Grid>
                </div>
              ))}
            </div>
          </section>
        </>
      )}
    </>
  );
}
