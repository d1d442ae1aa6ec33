import type { JSX } from "preact";
import { useCallback, useMemo } from "preact/hooks";
import type { Explorer } from "../explorer.ts";
import { Term } from "../glossary.tsx";
import { HeatMap, type Cell } from "../heatmap.tsx";
import { confusionOf } from "../pairs.ts";
import { Choice, ClassName, classText } from "../parts.tsx";
import { format, setQuery, useQuery } from "../route.ts";
import { count, item, percent, plural } from "../words.ts";
import { pairLink } from "./pair.tsx";

const MOST = 200;
const PAIRS = 20;

/** Classes by predicted classes; a mistake leads to the two classes. */
export function Confusion({ explorer }: { explorer: Explorer }): JSX.Element {
  const { show = "" } = useQuery();
  const { classes, per_class, part } = explorer.page;
  const found = useMemo(() => confusionOf(explorer), [explorer]);
  const order = useMemo(() => {
    const errors = (k: number): number => {
      const of = found.get(k);
      return of ? [...of].reduce((sum, [as, images]) => sum + (as === k ? 0 : images), 0) : 0;
    };
    const wrong = classes.map((_, k) => errors(k));
    for (const of of found) for (const [as, images] of of[1]) if (as !== of[0]) wrong[as]! += images;
    const kept = new Set([...classes.keys()].sort((a, b) => wrong[b]! - wrong[a]! || a - b).slice(0, MOST));
    return [...explorer.classOrder].filter((k) => kept.has(k));
  }, [explorer, found]);
  const names = useMemo(() => order.map((k) => classText(explorer, k, 40)), [explorer, order]);
  const of = (k: number, as: number): number => found.get(k)?.get(as) ?? 0;
  const value = useCallback(
    ({ row, column }: Cell): number => {
      const [k, as] = [order[row]!, order[column]!];
      const share = per_class[k]!.images ? of(k, as) / per_class[k]!.images : 0;
      if (k === as) return show === "all" ? share : 0;
      return share > 0 ? -Math.min(1, 0.15 + 1.7 * share) : 0;
    },
    [explorer, order, found, show],
  );
  const start = useMemo((): Cell => {
    let [best, cell] = [0, { row: 0, column: Math.min(1, order.length - 1) }];
    order.forEach((k, row) => order.forEach((as, column) => k !== as && of(k, as) > best && ([best, cell] = [of(k, as), { row, column }])));
    return cell;
  }, [order, found]);
  const said = ({ row, column }: Cell): JSX.Element => {
    const [k, as] = [order[row]!, order[column]!];
    const images = of(k, as);
    return (
      <>
        <span>
          <ClassName explorer={explorer} k={k} limit={40} /> {k === as ? "classified right" : "taken for"} {k !== as && <ClassName explorer={explorer} k={as} limit={40} />}:{" "}
          <strong>{plural(images, item("image"))}</strong> of {count(per_class[k]!.images)}
        </span>
        {k !== as && <a href={pairLink(k, as)}>What separates them</a>}
        {images > 0 && <a href={format("images", null, { class: k, as })}>These {item("images")}</a>}
      </>
    );
  };
  return (
    <>
      <header class="view-head">
        <h1 tabIndex={-1}>Confusion matrix</h1>
        <p class="lead">
          Down: the class of {part} {item("images")}. Across: the class predicted from <Term of="exact">exact bits</Term>. Similar classes stand together
          {order.length < classes.length && `; the ${count(order.length)} with most mistakes of ${count(classes.length)}`}.
        </p>
      </header>
      {order.length < 2 ? (
        <p class="empty">There is one class: nothing to confuse.</p>
      ) : (
        <section aria-labelledby="matrix">
          <h2 id="matrix" class="hidden">
            Matrix
          </h2>
          <div class="tools">
            <Choice
              label="Show"
              value={show}
              options={[
                ["", "mistakes"],
                ["all", "mistakes and right ones"],
              ]}
              onChange={(value) => setQuery({ show: value })}
            />
          </div>
          <HeatMap
            label="Classes down, predicted classes across"
            rows={names}
            columns={order.length}
            least={order.length > 100 ? 6 : 11}
            height={order.length > 100 ? 6 : order.length > 60 ? 11 : order.length > 24 ? 14 : 24}
            value={value}
            said={said}
            open={({ row, column }) => pairLink(order[row]!, order[column]!)}
            start={start}
            numbered
          />
          <details class="heat-legend">
            <summary>Classes by number</summary>
            <ol>
              {order.map((k) => (
                <li key={k}>
                  <ClassName explorer={explorer} k={k} limit={40} />
                </li>
              ))}
            </ol>
          </details>
        </section>
      )}
      <p class="after">
        Some may be mistakes of the labels: <a href="#/doubtful">doubtful labels</a>
      </p>
      <MistakeList explorer={explorer} most={PAIRS} />
    </>
  );
}

/** The most frequent mistakes: each leads to its two classes and to its images. */
export function MistakeList({ explorer, most }: { explorer: Explorer; most: number }): JSX.Element | null {
  const pairs = explorer.mistakes;
  if (!pairs.length) return null;
  return (
    <section aria-labelledby="mistakes">
      <h2 id="mistakes">
        Most frequent mistakes <Term of="mistake" />
      </h2>
      <ul class="rows mistakes">
        {pairs.slice(0, most).map(([label, guess, images]) => (
          <li key={`${label} ${guess}`}>
            <span>
              <ClassName explorer={explorer} k={label} limit={40} /> taken for <ClassName explorer={explorer} k={guess} limit={40} />
            </span>
            <span class="mistake-links">
              <a href={pairLink(label, guess)} aria-label={`Why ${classText(explorer, label)} is taken for ${classText(explorer, guess)}`}>
                why?
              </a>
              <a
                class="value"
                href={format("images", null, { class: String(label), as: String(guess) })}
                aria-label={`${plural(images, item("image"))} of ${classText(explorer, label)} taken for ${classText(explorer, guess)}, ${percent(
                  images / Math.max(1, explorer.page.per_class[label]!.images),
                )} of the class`}
              >
                {plural(images, item("image"))}
              </a>
            </span>
          </li>
        ))}
      </ul>
    </section>
  );
}
