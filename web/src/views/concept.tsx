import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { bitOf } from "../bits.ts";
import { classesOf, weightOf, type Explorer, type Group } from "../explorer.ts";
import { namingOf, stateOf, useEdits, type Naming } from "../names.ts";
import { Badge, ClassName, classTells, conceptLink, Shares, Signed } from "../parts.tsx";
import { Grid, Thumb, Verdict } from "../pictures.tsx";
import { permutation } from "../random.ts";
import { useQuery } from "../route.ts";
import { LongText, Rest, Text } from "../text.tsx";
import { count, decimal, item, percent, plural, signed } from "../words.ts";
import { Term, type TermKey } from "../glossary.tsx";
import { Related, Strengths, Without } from "./concept_relations.tsx";
import { ConceptWhere } from "./concept_where.tsx";
import { NameForm } from "./name_form.tsx";
import { OfClass } from "./of_class.tsx";
import { pairLink } from "./pair.tsx";

const DRAWN = 12;
const EACH = 8;

export function Concept({ explorer, concept }: { explorer: Explorer; concept: number }): JSX.Element {
  const data = explorer.concepts[concept]!;
  const naming = namingOf(explorer, concept, useEdits());
  const rows = useMemo(() => {
    const on: number[] = [];
    const off: number[] = [];
    for (const row of permutation(explorer.page.images, concept)) (bitOf(explorer.bits, concept, row * explorer.width) ? on : off).push(row);
    return { on, off };
  }, [explorer, concept]);
  return (
    <>
      <nav class="beside" aria-label="Neighbouring concepts">
        {concept > 0 ? <a href={conceptLink(concept - 1)}>← Concept {concept - 1}</a> : <span />}
        <a href="#/concepts">All concepts</a>
        {concept < explorer.page.concepts - 1 ? <a href={conceptLink(concept + 1)}>Concept {concept + 1} →</a> : <span />}
      </nav>
      <header class="view-head">
        <p class="kicker">Concept {concept}</p>
        <h1 tabIndex={-1}>{naming.name ? <Text value={naming.name} limit={120} /> : <span class="muted">Unnamed</span>}</h1>
        {naming.name && <Rest value={naming.name} limit={120} />}
        <Decides explorer={explorer} concept={concept} />
        <Tells explorer={explorer} concept={concept} />
      </header>
      <OfTwo explorer={explorer} concept={concept} />
      <ConceptWhere explorer={explorer} concept={concept} />
      <div class="columns wide-left">
        <section aria-labelledby="check" class="card">
          <h2 id="check">Name and check</h2>
          <Check explorer={explorer} concept={concept} naming={naming} />
          <NameForm key={concept} explorer={explorer} concept={concept} naming={naming} />
        </section>
        <section aria-labelledby="numbers" class="card">
          <h2 id="numbers">Numbers</h2>
          <dl class="facts">
            <Fact label={item("Training images with it")} term="share" value={percent(data.rate, 1)} />
            <Fact label="Importance rank" term="rank" value={`${count(data.rank)} of ${count(explorer.page.concepts)}`} />
            <Fact label="Largest weight" term="largest weight" value={decimal(data.importance, 3)} />
            <Fact label="Effect on the logits" term="effect on the logits" value={decimal(data.spread, 3)} />
            <Fact label="Guessed from the class" term="accuracy from the class" value={percent(data.accuracy, 1)} />
            <Fact label="The same, balanced" term="balanced accuracy" value={percent(data.balanced, 1)} />
          </dl>
          {data.dead && <p class="warn">
              <Term of="dead">Dead</Term>: always the same in training {item("images")}. It tells nothing apart.
            </p>}
        </section>
      </div>
      <Without concept={concept} />
      <section aria-labelledby="images">
        <h2 id="images">{item("Images")}</h2>
        <p class="muted">
          Drawn at random from the {plural(explorer.page.images, item("image"))} of this page. None were picked.
        </p>
        <div class="columns">
          <Drawn key={`on${concept}`} explorer={explorer} rows={rows.on} title="With the concept" label={naming.label_1} />
          <Drawn key={`off${concept}`} explorer={explorer} rows={rows.off} title="Without it" label={naming.label_0} />
        </div>
      </section>
      <Strengths explorer={explorer} concept={concept} />
      <Related explorer={explorer} concept={concept} />
      <section aria-labelledby="classes">
        <h2 id="classes">
          Classes <Term of="group" />
        </h2>
        <p class="muted">
          {explorer.page.part === "train" ? item("By the training images, which this page shows: nothing is held out.") : `By the ${explorer.page.part} ${item("images")} of each class, the share of its training ${item("images")} below; training ${item("images")} alone where there are no others.`}
        </p>
        <div class="columns three">
          {(["A", "B", "mixed"] as const).map((group) => (
            <ClassGroup key={`${group}${concept}`} explorer={explorer} concept={concept} group={group} />
          ))}
        </div>
      </section>
      <Weights key={concept} explorer={explorer} concept={concept} />
    </>
  );
}

/** What the concept does to decisions: the classes that it speaks most for and against. */
function Decides({ explorer, concept }: { explorer: Explorer; concept: number }): JSX.Element {
  if (!explorer.used[concept]) return <p class="lead decides">No class draws on it: it has no part in any decision.</p>;
  const sorted = byWeight(explorer, concept);
  const ends: [string, [number, number]][] = [["for", sorted[0]!], ["against", sorted.at(-1)!]];
  const there = ends.filter(([side, [, weight]]) => (side === "for" ? weight > 0 : weight < 0));
  return (
    <p class="lead decides">
      Speaks most{" "}
      {there.map(([side, [k, weight]], place) => (
        <span key={side}>
          {place > 0 && ", "}
          {side} <ClassName explorer={explorer} k={k} limit={40} /> ({signed(weight)})
        </span>
      ))}
      . <Term of="weight" />
    </p>
  );
}

/** Classes and their weights of a concept, the largest first. */
const byWeight = (explorer: Explorer, concept: number): [number, number][] =>
  explorer.page.classes.map((_, k): [number, number] => [k, weightOf(explorer, k, concept)]).sort((a, b) => b[1] - a[1] || a[0] - b[0]);

/** How far to trust that the concept is of classes. */
function Tells({ explorer, concept }: { explorer: Explorer; concept: number }): JSX.Element | null {
  const said = classTells(explorer, concept);
  if (!said) return null;
  return (
    <p class="lead tells">
      {said}, those with and without it counted alike; chance: 50%. <Term of="balanced accuracy" />
    </p>
  );
}

/** Images of the two classes that a visitor comes from. */
function OfTwo({ explorer, concept }: { explorer: Explorer; concept: number }): JSX.Element | null {
  const query = useQuery();
  const [a, b] = [query.a, query.b].map((text) => (text && /^\d+$/.test(text) && Number(text) < explorer.head.classes ? Number(text) : null));
  if (a == null || b == null || a === b) return null;
  return (
    <section aria-labelledby="two" data-two={`${a} ${b}`}>
      <h2 id="two">In the two classes</h2>
      <p class="muted">
        {item("Images")} of each, those with maps first; whether they have the concept stands below. <a href={pairLink(a, b)}>What else separates them</a>
      </p>
      <div class="columns">
        {[a, b].map((k) => (
          <div key={`${concept} ${k}`} class="side">
            <h3>
              <ClassName explorer={explorer} k={k} limit={40} /> <span class="muted">{item("images")} with it</span>
            </h3>
            <Shares explorer={explorer} k={k} concept={concept} />
            <OfClass explorer={explorer} concept={concept} k={k} count={EACH} />
          </div>
        ))}
      </div>
    </section>
  );
}

export function Fact({ label, value, term }: { label: string; value: JSX.Element | string; term?: TermKey }): JSX.Element {
  return (
    <div>
      <dt>{term ? <Term of={term}>{label}</Term> : label}</dt>
      <dd>{value}</dd>
    </div>
  );
}

const SOURCES: Record<string, string> = {
  attributes: "chosen from attributes",
  model: "a language model",
  hand: "written by hand",
  supervised: "learned with labels",
  "label-free": "given as a text, learned by CLIP",
};

function Check({ explorer, concept, naming }: { explorer: Explorer; concept: number; naming: Naming }): JSX.Element {
  const state = stateOf(explorer, concept, naming);
  return (
    <>
      <p>
        <Badge explorer={explorer} concept={concept} />{" "}
        {naming.reason ? (
          <LongText value={naming.reason} />
        ) : state === "verified" ? (
          naming.checked_by ? (
            "Sorted by the name alone, the classes are told apart. None was held out: whoever wrote the name may have seen them."
          ) : (
            "The name sorts classes that had no part in choosing it."
          )
        ) : state === "unnamed" ? (
          "Nobody has named this concept."
        ) : null}
      </p>
      {naming.name && (
        <dl class="facts">
          {naming.label_1 && <Fact label={item("Images with it")} value={<LongText value={naming.label_1} limit={200} />} />}
          {naming.label_0 && <Fact label={item("Images without it")} value={<LongText value={naming.label_0} limit={200} />} />}
          {naming.held_out !== null && (
            <Fact label={`${naming.checked_by ? "Balanced" : "Held-out balanced"} accuracy`} term={naming.checked_by ? "balanced accuracy" : "held out"} value={percent(naming.held_out, 1)} />
          )}
          {naming.status && <Fact label="Status" term="status" value={<Text value={naming.status} />} />}
          {naming.checked_on && (
            <Fact label="Checked on" value={naming.checked_on === "pictures" ? "held-out pictures, sorted by the name alone" : <Text value={naming.checked_on} />} />
          )}
          {naming.auprc !== null && <Fact label="AUPRC" term="auprc" value={decimal(naming.auprc)} />}
          {naming.f1 !== null && <Fact label="F1" term="f1" value={decimal(naming.f1)} />}
          {naming.correlation !== null && <Fact label="Correlation of name and bit" term="correlation" value={decimal(naming.correlation)} />}
          {naming.only_class !== null && naming.only_class !== false && (
            <Fact
              label="Says no more than"
              term="only class"
              value={typeof naming.only_class === "string" ? <Text value={naming.only_class} /> : item("the class of the image")}
            />
          )}
          {naming.p_value !== null && <Fact label="p, against shuffled classes" term="p-value" value={decimal(naming.p_value, 3)} />}
          {naming.test_a !== null && naming.test_b !== null && (
            <Fact label={item("Test images with it, groups A and B of the name")} term="group" value={`${percent(naming.test_a)} and ${percent(naming.test_b)}`} />
          )}
          {naming.agreement !== null &&
            (naming.source === "model" ? (
              <Fact label="Agreement of the namings (kappa)" term="agreement" value={decimal(naming.agreement)} />
            ) : (
              <Fact label="Repeated namings that agree" term="agreement" value={percent(naming.agreement)} />
            ))}
          {naming.source && (
            <Fact
              label="Source"
              value={
                <>
                  {SOURCES[naming.source] ?? <Text value={naming.source} />}
                  {naming.model && (
                    <>
                      {" "}
                      (<Text value={naming.model} />)
                    </>
                  )}
                </>
              }
            />
          )}
          {naming.checked_by && <Fact label="Checked by" value={<Text value={naming.checked_by} />} />}
        </dl>
      )}
      {naming.justification && (
        <blockquote>
          <LongText value={naming.justification} />
        </blockquote>
      )}
    </>
  );
}

function Drawn({ explorer, rows, title, label }: { explorer: Explorer; rows: number[]; title: string; label: string | null }): JSX.Element {
  const [shown, setShown] = useState(DRAWN);
  return (
    <div>
      <h3>
        {title} <span class="muted">{count(rows.length)}</span>
      </h3>
      {label && (
        <p class="labels">
          <Text value={label} limit={120} />
        </p>
      )}
      {rows.length === 0 && <p class="empty">No {item("image")} on this page.</p>}
      <Grid explorer={explorer}>
        {rows.slice(0, shown).map((row) => (
          <Thumb key={row} explorer={explorer} row={row}>
            <Verdict explorer={explorer} row={row} />
          </Thumb>
        ))}
      </Grid>
      {rows.length > shown && (
        <button type="button" onClick={() => setShown(shown + 2 * DRAWN)}>
          More {item("images")} {title.toLowerCase()}
        </button>
      )}
    </div>
  );
}

function ClassGroup({ explorer, concept, group }: { explorer: Explorer; concept: number; group: Group }): JSX.Element {
  const [shown, setShown] = useState(DRAWN);
  const found = useMemo(() => classesOf(explorer, concept, group), [explorer, concept, group]);
  const { low, high } = explorer.page.groups;
  const title = { A: `A: ${percent(high)} or more have it`, B: `B: ${percent(low)} or fewer`, mixed: "Mixed", empty: "" }[group];
  return (
    <div>
      <h3>
        {title} <span class="muted">{count(found.length)}</span>
      </h3>
      {found.length === 0 && <p class="empty">No class.</p>}
      <ul class="rows">
        {found.slice(0, shown).map(([k]) => (
          <li key={k}>
            <ClassName explorer={explorer} k={k} limit={48} />
            <Shares explorer={explorer} k={k} concept={concept} />
          </li>
        ))}
      </ul>
      {found.length > shown && (
        <button type="button" onClick={() => setShown(shown + 100)}>
          {count(Math.min(100, found.length - shown))} more classes
        </button>
      )}
    </div>
  );
}

function Weights({ explorer, concept }: { explorer: Explorer; concept: number }): JSX.Element {
  const sorted = useMemo(() => byWeight(explorer, concept), [explorer, concept]);
  const most = Math.max(Math.abs(sorted[0]![1]), Math.abs(sorted.at(-1)![1]));
  const sides: [string, [number, number][]][] = [
    ["Speaks for", sorted.filter(([, weight]) => weight > 0).slice(0, 10)],
    ["Speaks against", sorted.filter(([, weight]) => weight < 0).reverse().slice(0, 10)],
  ];
  return (
    <section aria-labelledby="weights">
      <h2 id="weights">Importance for the classes</h2>
      <p class="muted">The <Term of="weight">weight</Term> is what the concept adds to the <Term of="logit">logit</Term> of a class when {item("an image")} has it; the strongest ten each way.</p>
      <div class="columns">
        {sides.map(([title, rows]) => (
          <div key={title}>
            <h3>{title}</h3>
            {rows.length === 0 && <p class="empty">No class.</p>}
            <ul class="rows">
              {rows.map(([k, weight]) => (
                <li key={k}>
                  <ClassName explorer={explorer} k={k} limit={40} />
                  <Signed value={weight} most={most} digits={3} />
                </li>
              ))}
            </ul>
          </div>
        ))}
      </div>
    </section>
  );
}

