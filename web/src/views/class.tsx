import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { drawsOn, entries, groupOf, isHeldOut, shareOf, trainedShareOf, weightOf, wrong, type Explorer } from "../explorer.ts";
import { namingOf, useEdits } from "../names.ts";
import { Choice, ClassName, classText, ConceptName, classLink, pageOf, Pages, Shares, Signed, SortHeader, Training, UsedOnly, worded } from "../parts.tsx";
import { Grid, Thumb, Verdict } from "../pictures.tsx";
import { format, setQuery, useQuery } from "../route.ts";
import { Rest, Text } from "../text.tsx";
import { count, item, percent, plural } from "../words.ts";
import { pairLink } from "./pair.tsx";
import { Term } from "../glossary.tsx";
import { Fact } from "./concept.tsx";

const SIZE = 20;
const SHOWN = 18;

export function ClassView({ explorer, k }: { explorer: Explorer; k: number }): JSX.Element {
  const { classes, per_class, part } = explorer.page;
  const numbers = per_class[k]!;
  const others = useMemo(() => classes.flatMap((_, other): [string, string][] => (other === k ? [] : [[String(other), classText(explorer, other, 50)]])), [explorer, k]);
  return (
    <>
      <nav class="beside" aria-label="Neighbouring classes">
        {k > 0 ? <a href={classLink(k - 1)}>← Class {k - 1}</a> : <span />}
        <a href="#/classes">All classes</a>
        {k < classes.length - 1 ? <a href={classLink(k + 1)}>Class {k + 1} →</a> : <span />}
      </nav>
      <header class="view-head">
        <p class="kicker">Class {k}</p>
        <h1 tabIndex={-1}>
          <Text value={classes[k]!} limit={120} />
        </h1>
        <Rest value={classes[k]!} limit={120} />
      </header>
      {classes.length > 1 && (
        <div class="tools">
          <Choice label="What separates it from" value="" options={[["", "–"], ...others]} onChange={(value) => value && (location.hash = pairLink(k, Number(value)))} />
        </div>
      )}
      <div>
        <section aria-labelledby="numbers" class="card">
          <h2 id="numbers">Numbers</h2>
          <dl class="facts">
            <Fact label={`${item("Images")}, ${part}`} term="part" value={count(numbers.images)} />
            <Fact label="Accuracy, exact bits" term="exact" value={percent(numbers.accuracy, 1)} />
            <Fact label="Accuracy, smooth" term="smooth" value={percent(numbers.smooth, 1)} />
          </dl>
        </section>
      </div>
      <TypicalImages explorer={explorer} k={k} />
      <ClassConcepts explorer={explorer} k={k} />
      <Misclassified key={k} explorer={explorer} k={k} />
    </>
  );
}

function TypicalImages({ explorer, k }: { explorer: Explorer; k: number }): JSX.Element | null {
  const rows = entries(explorer.typical, k);
  if (!rows.length) return null;
  return (
    <section aria-labelledby="typical">
      <h2 id="typical">
        Typical {item("images")} <Term of="typical" />
      </h2>
      <Grid explorer={explorer}>
        {rows.map((row) => (
          <Thumb key={row} explorer={explorer} row={row}>
            {wrong(explorer, row) ? <Verdict explorer={explorer} row={row} /> : undefined}
          </Thumb>
        ))}
      </Grid>
    </section>
  );
}

const GROUPS: [string, string][] = [
  ["", "all"],
  ["A", "A: most images have it"],
  ["B", "B: few have it"],
  ["mixed", "mixed"],
];

function ClassConcepts({ explorer, k }: { explorer: Explorer; k: number }): JSX.Element {
  const { part, per_class } = explorer.page;
  const [heldOut, numbers] = [isHeldOut(explorer, k), per_class[k]!];
  const now = useEdits();
  const { sort = "-weight", group = "", unused = "", page: asked = "1" } = useQuery();
  const { found, most, used } = useMemo(() => {
    const down = sort.startsWith("-");
    const by = down ? sort.slice(1) : sort;
    const compared = new Intl.Collator("en", { numeric: true });
    const value = (concept: number): number =>
      by === "share" ? shareOf(explorer, k, concept) || 0 : by === "balanced" ? (explorer.concepts[concept]!.balanced ?? -1) : weightOf(explorer, k, concept);
    const name = (concept: number): string => namingOf(explorer, concept, now).name ?? `\uFFFF${concept}`;
    const rising = (a: number, b: number): number => (by === "name" ? compared.compare(name(a), name(b)) : value(a) - value(b));
    const all = explorer.concepts.map((_, concept) => concept);
    const drawn = all.filter((concept) => drawsOn(explorer, concept, k));
    return {
      used: drawn.length,
      most: all.reduce((top, concept) => Math.max(top, Math.abs(weightOf(explorer, k, concept))), 0),
      found: (unused ? all : drawn).filter((concept) => !group || groupOf(explorer, k, concept) === group).sort((a, b) => (down ? -1 : 1) * rising(a, b) || a - b),
    };
  }, [explorer, k, sort, group, unused, now]);
  const page = pageOf({ page: asked }, found.length, SIZE);
  return (
    <section aria-labelledby="concepts">
      <h2 id="concepts">Concepts</h2>
      <p class="muted">The weight is what a concept adds to this class's logit. {heldOut ? `The share is that of the class's ${plural(numbers.images, `${part} ${item("image")}`)}, that of its training ${item("images")} below it.` : `The share is that of the class's training ${item("images")} alone: ${part === "train" ? "this page shows them" : `it has no ${part} ${item("images")}`}.`}</p>
      <UsedOnly used={used} total={explorer.page.concepts} of="for this class" />
      <div class="tools">
        <Choice label="Group" value={group} options={worded(GROUPS)} onChange={(value) => setQuery({ group: value, page: null })} />
        <p class="found" role="status">
          {plural(found.length, "concept")}
        </p>
      </div>
      {found.length === 0 ? (
        <p class="empty">No concept in this group.</p>
      ) : (
        <table class="list weights">
          <caption class="hidden">Concepts and their weights for this class, {SIZE} at a time</caption>
          <thead>
            <tr>
              <SortHeader by="name" sort={sort}>
                Concept
              </SortHeader>
              <SortHeader by="weight" sort={sort} down term="weight" class="num">
                Weight
              </SortHeader>
              <SortHeader by="share" sort={sort} down term="share" class="rate">
                {item("Images")} with it
              </SortHeader>
              <th scope="col" class="wide-only">
                <Term of="group">Group</Term>
              </th>
              <SortHeader by="balanced" sort={sort} down term="balanced accuracy" class="num wide-only">
                Guessed from the class
              </SortHeader>
            </tr>
          </thead>
          <tbody>
            {found.slice((page - 1) * SIZE, page * SIZE).map((concept) => (
              <tr key={concept}>
                <th scope="row">
                  <ConceptName explorer={explorer} concept={concept} />
                </th>
                <td>
                  <Signed value={weightOf(explorer, k, concept)} most={most} />
                </td>
                <td class="rate">
                  <Shares explorer={explorer} k={k} concept={concept} />
                </td>
                <td class="wide-only">
                  {groupOf(explorer, k, concept)}
                  {heldOut && <Training>{groupOf(explorer, k, concept, trainedShareOf)}</Training>}
                </td>
                <td class="num wide-only">{percent(explorer.concepts[concept]!.balanced)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      <Pages page={page} size={SIZE} total={found.length} what="concepts" />
    </section>
  );
}

function Misclassified({ explorer, k }: { explorer: Explorer; k: number }): JSX.Element {
  const [shown, setShown] = useState(SHOWN);
  const { rows, taken } = useMemo(() => {
    const rows = explorer.ids.flatMap((_, row) => (explorer.labels[row] === k && wrong(explorer, row) ? [row] : []));
    const tally = new Map<number, number>();
    for (const row of rows) tally.set(explorer.exact[row]!, (tally.get(explorer.exact[row]!) ?? 0) + 1);
    return { rows, taken: [...tally].sort((a, b) => b[1] - a[1] || a[0] - b[0]) };
  }, [explorer, k]);
  return (
    <section aria-labelledby="wrong">
      <h2 id="wrong">
        Misclassified {item("images")} <span class="muted">{count(rows.length)}</span>
      </h2>
      {rows.length === 0 ? (
        <p class="empty">None of this class's {item("images")} on this page.</p>
      ) : (
        <p class="taken">
          Taken for{" "}
          {taken.slice(0, 12).map(([other, number], index) => (
            <span key={other}>
              {index > 0 && ", "}
              <ClassName explorer={explorer} k={other} limit={32} /> <a class="muted" href={pairLink(k, other)} aria-label={`What separates ${classText(explorer, k)} from ${classText(explorer, other)}`}>
                ×{count(number)}
              </a>
            </span>
          ))}
          {taken.length > 12 && `, and ${count(taken.length - 12)} others`}.
        </p>
      )}
      <Grid explorer={explorer}>
        {rows.slice(0, shown).map((row) => (
          <Thumb key={row} explorer={explorer} row={row}>
            <span class="wrong">
              taken for <ClassName explorer={explorer} k={explorer.exact[row]!} limit={24} />
            </span>
          </Thumb>
        ))}
      </Grid>
      <p class="actions">
        {rows.length > shown && (
          <button type="button" onClick={() => setShown(shown + 2 * SHOWN)}>
            More misclassified {item("images")}
          </button>
        )}
        <a href={format("images", null, { class: k })}>All {item("images")} of this class</a>
      </p>
    </section>
  );
}
