import type { JSX } from "preact";
import { isBeyond, usedConcepts, type Explorer } from "../explorer.ts";
import { Term } from "../glossary.tsx";
import { namingOf, stateOf, useEdits, type State } from "../names.ts";
import { format } from "../route.ts";
import { LongText, Text } from "../text.tsx";
import type { Score } from "../types.ts";
import { count, decimal, item, percent, plural } from "../words.ts";
import { MistakeList } from "./confusion.tsx";
import { ConceptsByClasses, OneDecision } from "./overview_parts.tsx";

const STATES: State[] = ["verified", "unverified", "unnamed", "dead"];

export function scoreText({ value, kind }: Score): string {
  if (value === null) return "–";
  if (kind === "percent") return percent(value, 1);
  if (kind === "points") return `${value > 0 ? "+" : ""}${decimal(100 * value, 1)} pts`;
  return kind === "count" ? count(value) : decimal(value, 1);
}

function Names({ explorer }: { explorer: Explorer }): JSX.Element {
  const now = useEdits();
  const tally: Record<State, number> = { verified: 0, unverified: 0, unnamed: 0, dead: 0 };
  usedConcepts(explorer).forEach((concept) => tally[stateOf(explorer, concept, namingOf(explorer, concept, now))]++);
  return (
    <section aria-labelledby="names">
      <h2 id="names">Names</h2>
      <div class="stack" aria-hidden="true">
        {STATES.map((state) => tally[state] > 0 && <span key={state} class={`part ${state}`} style={{ flexGrow: tally[state] }} />)}
      </div>
      <ul class="tally">
        {STATES.map((state) => (
          <li key={state}>
            <span class={`key ${state}`} />
            <a href={format("concepts", null, { show: state })}>{state}</a>
            <span class="value">{count(tally[state])}</span>
          </li>
        ))}
      </ul>
      <p class="muted">
        A name is <Term of="verified">verified</Term> when it sorts classes that had no part in choosing it (names written by hand: all classes), better than chance. An
        unverified name may say nothing true.
      </p>
    </section>
  );
}

export function Overview({ explorer }: { explorer: Explorer }): JSX.Element {
  const { page } = explorer;
  const { low, high } = page.groups;
  const used = usedConcepts(explorer).length;
  const beyond = explorer.concepts.filter((_, concept) => isBeyond(explorer, concept)).length;
  return (
    <>
      <header class="view-head">
        <h1 tabIndex={-1}>
          <Text value={page.title} limit={120} />
        </h1>
        <p class="lead">
          A classifier that decides by <a href="#/concepts">{plural(used, "concept")}</a>: <Term of="bit">bits</Term> that {item("an image")} has or has not
          {used < page.concepts && ` (${count(page.concepts - used)} more have no weight in any class)`}.{" "}
          {beyond > 0 && (
            <>
              <a href="#/concepts?show=beyond&sort=balanced">{count(beyond)} of these</a> say what the classes leave open.{" "}
            </>
          )}
          Here are{" "}
          <a href="#/images">{plural(page.images, `${page.part} ${item("image")}`)}</a> of <a href="#/classes">{plural(page.classes.length, "class", "classes")}</a>.
        </p>
      </header>
      {page.example !== null && explorer.head.classes > 1 && <OneDecision explorer={explorer} given={page.example} />}
      <ConceptsByClasses explorer={explorer} />
      {explorer.mistakes.length > 0 && (
        <>
          <MistakeList explorer={explorer} most={8} />
          <p class="after">
            <a href="#/confusion">The whole confusion matrix</a>, <a href="#/doubtful">labels that are doubtful</a>, <a href="#/images?view=map">a map of all {item("images")}</a>
          </p>
        </>
      )}
      <section aria-labelledby="scores">
        <h2 id="scores">Scores</h2>
        <dl class="scores">
          {page.scores.filter(({ value }) => value !== null).map((score) => (
            <div key={score.key} class="score">
              <dt>{score.label}</dt>
              <dd class="figure">{scoreText(score)}</dd>
              <dd class="help">{score.help}</dd>
            </div>
          ))}
        </dl>
      </section>
      <Names explorer={explorer} />
      <div class="columns wide-left">
        <section aria-labelledby="reading">
          <h2 id="reading">How to read this page</h2>
          <ul class="prose">
            <li>
              A concept is one bit. The logit of a class is the sum of its weights over the concepts that {item("an image")} has, and a bias: nothing else enters the
              decision.
            </li>
            <li>
              A concept's classes are in group A when {percent(high)} or more of their training {item("images")} have it, in B when {percent(low)} or fewer do, else mixed.
            </li>
            <li>Names were found afterwards. Look at {item("images")} with and without the concept, which are drawn at random, and doubt the name.</li>
            <li>
              Begin with the <a href="#/concepts?sort=-doubt">most doubtful concepts</a>: they move the decisions much, and the class says little about them.
            </li>
            <li>
              On <a href="#/images">{item("an image")}</a>, flip its concepts and see what the classifier would say. Rename a concept where its name is wrong; the names
              stay in this browser until you export them.
            </li>
          </ul>
        </section>
        <section aria-labelledby="about">
          <h2 id="about">About</h2>
          <dl class="facts">
            {page.about.map(([label, value], index) => (
              <div key={index}>
                <dt>
                  <Text value={label} />
                </dt>
                <dd>
                  <LongText value={value} limit={200} />
                </dd>
              </div>
            ))}
            {Object.entries(page.parts).map(
              ([part, images]) =>
                images > 0 && (
                  <div key={part}>
                    <dt>{part === page.part ? `${item("Images")}, ${part} (shown)` : `${item("Images")}, ${part}`}</dt>
                    <dd>{count(images)}</dd>
                  </div>
                ),
            )}
          </dl>
        </section>
      </div>
      {page.notes.length > 0 && (
        <section aria-labelledby="notes">
          <h2 id="notes">Notes</h2>
          <ul class="prose">
            {page.notes.map((note, index) => (
              <li key={index}>
                <LongText value={note} />
              </li>
            ))}
          </ul>
        </section>
      )}
    </>
  );
}
