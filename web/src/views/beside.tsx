import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import type { Explorer } from "../explorer.ts";
import { Term } from "../glossary.tsx";
import { Choice, ClassName, ConceptName, pageOf, Pages, Signed } from "../parts.tsx";
import { Grid, Thumb, Verdict } from "../pictures.tsx";
import { setQuery, useQuery } from "../route.ts";
import { Text } from "../text.tsx";
import { count, item, percent, plain, plural, signed } from "../words.ts";
import { scoreText } from "./overview.tsx";

const SHOWN = 12;
const CLASSES = 12;
const SIZE = 30;
const ALIKE = 0.5; // correlation from which two concepts are said to be one

/** Two networks side by side. */
export function BesideView({ explorer }: { explorer: Explorer }): JSX.Element {
  const { page, beside: other } = explorer;
  if (!other) return <></>;
  const [both, here, there, neither] = other.tally;
  const known = both + here + there + neither;
  const titles = [page.title, other.title].map((title) => plain(title, 60));
  const classes = page.classes
    .flatMap((_, k): [number, number, number][] => {
      const [mine, theirs] = [page.per_class[k]!.accuracy, other.accuracies[k] ?? null];
      return mine === null || theirs === null ? [] : [[k, mine, theirs]];
    })
    .sort(([k, a, b], [l, c, d]) => Math.abs(d - c) - Math.abs(b - a) || k - l)
    .slice(0, CLASSES);
  return (
    <>
      <header class="view-head">
        <h1 tabIndex={-1}>Two runs side by side</h1>
        <p class="lead">
          <Text value={page.title} limit={80} /> and <Text value={other.title} limit={80} />, compared on {plural(other.common, item("image"))} that both have.
        </p>
      </header>
      <section aria-labelledby="scores">
        <h2 id="scores">Scores</h2>
        <table class="list two-runs">
          <caption class="hidden">Scores of the two runs, each of all its own {page.part} {item("images")}</caption>
          <thead>
            <tr>
              <th scope="col">Score</th>
              <th scope="col" class="num">
                <bdi>{titles[0]}</bdi>
              </th>
              <th scope="col" class="num">
                <bdi>{titles[1]}</bdi>
              </th>
            </tr>
          </thead>
          <tbody>
            <tr>
              <th scope="row">Concepts</th>
              <td class="num">{count(page.concepts)}</td>
              <td class="num">{count(other.concepts)}</td>
            </tr>
            {page.scores.map((score) => {
              const same = other.scores.find(({ key }) => key === score.key);
              return (
                <tr key={score.key}>
                  <th scope="row">{score.label}</th>
                  <td class="num">{scoreText(score)}</td>
                  <td class="num">{same ? scoreText(same) : "–"}</td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </section>
      <section aria-labelledby="agree">
        <h2 id="agree">Where they agree</h2>
        <dl class="scores">
          {(
            [
              ["Both right", both],
              ["Only the first right", here],
              ["Only the second right", there],
              ["Neither right", neither],
            ] as const
          ).map(([label, images]) => (
            <div key={label} class="score">
              <dt>{label}</dt>
              <dd class="figure">{percent(images / Math.max(1, known), 1)}</dd>
              <dd class="help">{plural(images, item("image"))}</dd>
            </div>
          ))}
        </dl>
      </section>
      <section aria-labelledby="differ">
        <h2 id="differ">{item("Images")} that one alone has right</h2>
        <div class="columns">
          <Side explorer={explorer} title="Only the first" rows={other.only_here} />
          <Side explorer={explorer} title="Only the second" rows={other.only_there} />
        </div>
      </section>
      {classes.length > 0 && (
        <section aria-labelledby="classes">
          <h2 id="classes">Classes that differ most</h2>
          <ul class="rows">
            {classes.map(([k, mine, theirs]) => (
              <li key={k}>
                <ClassName explorer={explorer} k={k} limit={48} />
                <span class="num">
                  {percent(mine)} and {percent(theirs)} <span class="muted">({signed(100 * (theirs - mine), 0)} points)</span>
                </span>
              </li>
            ))}
          </ul>
        </section>
      )}
      <Matches explorer={explorer} />
    </>
  );
}

function Side({ explorer, title, rows }: { explorer: Explorer; title: string; rows: number[] }): JSX.Element {
  return (
    <div class="side">
      <h3>
        {title} <span class="muted">{count(rows.length)} on this page</span>
      </h3>
      {rows.length === 0 && <p class="empty">None.</p>}
      <Grid explorer={explorer}>
        {rows.slice(0, SHOWN).map((row) => (
          <Thumb key={row} explorer={explorer} row={row}>
            <Verdict explorer={explorer} row={row} />
          </Thumb>
        ))}
      </Grid>
    </div>
  );
}

/** Which concept of the other run is most like each of this one's. */
function Matches({ explorer }: { explorer: Explorer }): JSX.Element {
  const { match = "", page: asked = "1" } = useQuery();
  const other = explorer.beside!;
  const strength = (concept: number): number => Math.abs(other.matched_by[concept]!);
  const order = useMemo(() => {
    const sign = match === "own" ? 1 : -1;
    return [...explorer.concepts.keys()].sort((a, b) => sign * (strength(a) - strength(b)) || a - b);
  }, [explorer, match]);
  const shared = explorer.concepts.filter((_, concept) => strength(concept) >= ALIKE).length;
  const page = pageOf({ page: asked }, order.length, SIZE);
  return (
    <section aria-labelledby="matches">
      <h2 id="matches">
        Concepts of one in the other <Term of="correlation" />
      </h2>
      <p class="muted">
        For each concept the one of the other run whose bit correlates most with it. {count(shared)} of {count(order.length)} have one with a correlation of {ALIKE} or
        more, either way.
      </p>
      <div class="tools">
        <Choice
          label="First"
          value={match}
          options={[
            ["", "those that both have"],
            ["own", "those of the first alone"],
          ]}
          onChange={(value) => setQuery({ match: value, page: null })}
        />
      </div>
      <table class="list matches">
        <caption class="hidden">Concepts and their nearest in the other run, {SIZE} at a time</caption>
        <thead>
          <tr>
            <th scope="col">Concept of the first</th>
            <th scope="col">Nearest of the second</th>
            <th scope="col" class="num">
              <Term of="correlation">Correlation</Term>
            </th>
          </tr>
        </thead>
        <tbody>
          {order.slice((page - 1) * SIZE, page * SIZE).map((concept) => {
            const number = other.matches[concept]!;
            const said = other.names[String(number)];
            return (
              <tr key={concept} data-concept={concept} data-match={number}>
                <th scope="row">
                  <ConceptName explorer={explorer} concept={concept} limit={48} />
                </th>
                <td>
                  {number < 0 ? (
                    <span class="muted">none</span>
                  ) : (
                    <span class="concept-name">
                      <span class="number">{number}</span>
                      {said?.name ? (
                        <span class={said.verified ? "" : "doubt"}>
                          <Text value={said.name} limit={48} />
                          {!said.verified && " ?"}
                        </span>
                      ) : (
                        <span class="muted">unnamed</span>
                      )}
                    </span>
                  )}
                </td>
                <td>
                  <Signed value={other.matched_by[concept]!} most={1} />
                </td>
              </tr>
            );
          })}
        </tbody>
      </table>
      <Pages page={page} size={SIZE} total={order.length} what="concepts" />
    </section>
  );
}
