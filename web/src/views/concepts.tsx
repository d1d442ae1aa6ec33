import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { classesOf, entries, groupOf, isBeyond, usedConcepts, type Explorer } from "../explorer.ts";
import { namingOf, stateOf, useEdits, type Edits, type Naming } from "../names.ts";
import { Badge, Choice, classTells, conceptLink, ConceptName, pageOf, Pages, SearchField, Share, SortHeader, UsedOnly, worded } from "../parts.tsx";
import { isPictured, isShown, Picture } from "../pictures.tsx";
import { setQuery, useQuery } from "../route.ts";
import { Text } from "../text.tsx";
import { decimal, item, percent, plural } from "../words.ts";

const SIZE = 50;
const CARDS = 24;
const TEXTS = 3; // of a card
const SHOW: [string, string][] = [
  ["", "all"],
  ["beyond", "beyond the classes"],
  ["verified", "verified"],
  ["unverified", "unverified"],
  ["unnamed", "unnamed"],
  ["dead", "dead"],
  ["edited", "edited here"],
];
const SORTS: [string, string][] = [
  ["rank", "rank"],
  ["-importance", "largest weight"],
  ["-rate", "most images"],
  ["rate", "fewest images"],
  ["name", "name"],
  ["-check", "best check"],
  ["-accuracy", "guessed from the class"],
  ["balanced", "least guessed from the class"],
  ["-doubt", "most doubtful"],
  ["number", "number"],
];

const folded = (text: string): string => text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase();

/** Concepts whose number, name or labels hold the words, or that most images of a class have whose name does. */
function search(explorer: Explorer, now: Edits, query: string): (concept: number) => boolean {
  const words = folded(query.trim());
  if (!words) return () => true;
  const classes = explorer.page.classes.flatMap((name, k) => (folded(name).includes(words) ? [k] : []));
  return (concept) => {
    if (String(concept) === words.replace(/^#/, "")) return true;
    const { name, label_1, label_0 } = namingOf(explorer, concept, now);
    if ([name, label_1, label_0].some((text) => text && folded(text).includes(words))) return true;
    return classes.some((k) => groupOf(explorer, k, concept) === "A");
  };
}

function compare(explorer: Explorer, now: Edits, sort: string): (a: number, b: number) => number {
  const down = sort.startsWith("-");
  const by = down ? sort.slice(1) : sort;
  const sign = down ? -1 : 1;
  const data = explorer.concepts;
  if (by === "name") {
    const compared = new Intl.Collator("en", { numeric: true });
    return (a, b) => {
      const [x, y] = [namingOf(explorer, a, now).name, namingOf(explorer, b, now).name];
      if (x && y) return sign * compared.compare(x, y) || a - b;
      return x ? -1 : y ? 1 : a - b; // those without a name last, either way
    };
  }
  const value = (concept: number): number | null => {
    const one = data[concept]!;
    if (by === "check") return namingOf(explorer, concept, now).held_out;
    if (by === "number") return concept;
    if (by === "doubt") return one.balanced === null ? null : (1 - one.balanced) * one.spread;
    return by === "importance" || by === "rate" || by === "accuracy" || by === "balanced" ? one[by] : one.rank;
  };
  return (a, b) => {
    const [x, y] = [value(a), value(b)];
    if (x === null || y === null) return x === y ? a - b : x === null ? 1 : -1;
    return sign * (x - y) || a - b;
  };
}

export function Concepts({ explorer }: { explorer: Explorer }): JSX.Element {
  const now = useEdits();
  const { q = "", show = "", sort = "rank", as = "", unused = "", page: asked = "1" } = useQuery();
  const found = useMemo(() => {
    const matches = search(explorer, now, q);
    const shown = (concept: number): boolean => {
      if (show === "beyond") return isBeyond(explorer, concept);
      if (!unused && !explorer.used[concept]) return false;
      if (!show) return true;
      const naming = namingOf(explorer, concept, now);
      return show === "edited" ? naming.edited : stateOf(explorer, concept, naming) === show;
    };
    return explorer.concepts.flatMap((_, i) => (shown(i) && matches(i) ? [i] : [])).sort(compare(explorer, now, sort));
  }, [explorer, now, q, show, sort, unused]);
  const checked = explorer.concepts.some((one) => one.name) || now.size > 0;
  const size = as === "table" ? SIZE : CARDS;
  const page = pageOf({ page: asked }, found.length, size);
  return (
    <>
      <header class="view-head">
        <h1 tabIndex={-1}>Concepts</h1>
      </header>
      <div class="tools" role="search">
        <SearchField label="Search" hint="number, name, label, class" value={q} onInput={(value) => setQuery({ q: value, page: null })} />
        <Choice label="Show" value={show} options={SHOW} onChange={(value) => setQuery({ show: value, page: null })} />
        <Choice
          label="Sort by"
          class={as === "table" ? "narrow-only" : ""}
          value={sort}
          options={worded(SORTS.some(([key]) => key === sort) ? SORTS : [...SORTS, [sort, "as in the table"]])}
          onChange={(value) => setQuery({ sort: value, page: null })}
        />
        <Choice
          label="As"
          value={as}
          options={[
            ["", "cards"],
            ["table", "a table"],
          ]}
          onChange={(value) => setQuery({ as: value, page: null })}
        />
        <p class="found" role="status">
          {plural(found.length, "concept")}
        </p>
      </div>
      {show === "beyond" ? (
        <p class="muted">No class draws on these concepts, and the class hardly tells who has them: they say what the classes leave open.</p>
      ) : (
        <UsedOnly used={usedConcepts(explorer).length} total={explorer.page.concepts} of="by some class" />
      )}
      {found.length === 0 ? (
        <p class="empty">No concept matches. Classes count where most of their {item("images")} have the concept.</p>
      ) : as === "table" ? (
        <table class="list concepts">
          <caption class="hidden">Concepts, {size} at a time</caption>
          <thead>
            <tr>
              <SortHeader by="rank" sort={sort} term="rank" class="num">
                Rank
              </SortHeader>
              <SortHeader by="name" sort={sort}>
                Name
              </SortHeader>
              {checked && (
                <SortHeader by="check" sort={sort} down term="held out" class="check">
                  Check
                </SortHeader>
              )}
              <SortHeader by="rate" sort={sort} down term="share" class="rate">
                {item("Images")} with it
              </SortHeader>
              <SortHeader by="importance" sort={sort} down term="largest weight" class="num wide-only">
                Largest weight
              </SortHeader>
              <SortHeader by="accuracy" sort={sort} down term="accuracy from the class" class="num wide-only">
                Guessed from the class
              </SortHeader>
            </tr>
          </thead>
          <tbody>
            {found.slice((page - 1) * size, page * size).map((concept) => (
              <Row key={concept} explorer={explorer} concept={concept} now={now} checked={checked} />
            ))}
          </tbody>
        </table>
      ) : (
        <ul class="cards">
          {found.slice((page - 1) * size, page * size).map((concept) => (
            <Card key={concept} explorer={explorer} concept={concept} now={now} />
          ))}
        </ul>
      )}
      <Pages page={page} size={size} total={found.length} what="concepts" />
      <p class="muted note">
        Rank: by how much the concept moves the logits over all {item("images")}. Check: how well the name sorts classes that did not choose it. Guessed from the class: how often one who knows the class alone is right whether {item("an image")} has it; rare concepts score high whatever they
        mean. “Can be told from its class”: the same, {item("images")} with and without it counted alike; chance: 50%. Most doubtful: those that move the logits much though the
        class says little about them.
      </p>
    </>
  );
}

/** A concept with some images that have it, drawn at random. */
function Card({ explorer, concept, now }: { explorer: Explorer; concept: number; now: Edits }): JSX.Element {
  const data = explorer.concepts[concept]!;
  const naming = namingOf(explorer, concept, now);
  const tells = classTells(explorer, concept);
  const rows = isShown(explorer) ? entries(explorer.samples, concept).slice(0, isPictured(explorer) ? undefined : TEXTS) : [];
  return (
    <li class="concept-card" data-concept={concept}>
      <h2>
        <ConceptName explorer={explorer} concept={concept} limit={60} />
      </h2>
      {rows.length > 0 && (
        <a class="strip" href={conceptLink(concept)} tabIndex={-1} aria-hidden="true">
          {rows.map((row) => (
            <Picture key={row} explorer={explorer} row={row} size={76} decorative />
          ))}
        </a>
      )}
      {isShown(explorer) && rows.length === 0 && <p class="empty">No {item("image")} on this page has it.</p>}
      <Hint explorer={explorer} concept={concept} naming={naming} />
      {tells && <p class="labels tells">{tells}.</p>}
      <p class="card-foot">
        {(naming.name || naming.edited || data.dead) && <Badge explorer={explorer} concept={concept} />}
        {naming.held_out !== null && <span class="muted">{percent(naming.held_out)}</span>}
        <span class="card-rate">
          <span class="muted">{item("images")} with it</span>
          <Share value={data.rate} />
        </span>
      </p>
    </li>
  );
}

function Row({ explorer, concept, now, checked }: { explorer: Explorer; concept: number; now: Edits; checked: boolean }): JSX.Element {
  const data = explorer.concepts[concept]!;
  const naming = namingOf(explorer, concept, now);
  return (
    <tr data-concept={concept}>
      <td class="num rank">{data.rank}</td>
      <th scope="row">
        <ConceptName explorer={explorer} concept={concept} />
        <Hint explorer={explorer} concept={concept} naming={naming} />
      </th>
      {checked && (
        <td class="check">
          {(naming.name || naming.edited || data.dead) && <Badge explorer={explorer} concept={concept} />}{" "}
          {naming.held_out !== null && <span class="value">{percent(naming.held_out)}</span>}
        </td>
      )}
      <td class="rate">
        <Share value={data.rate} />
      </td>
      <td class="num wide-only">{decimal(data.importance)}</td>
      <td class="num wide-only">{percent(data.accuracy)}</td>
    </tr>
  );
}

const CLASSES = 3;

/** Below the name: its labels or, without them, some of the classes that have the concept. */
function Hint({ explorer, concept, naming }: { explorer: Explorer; concept: number; naming: Naming }): JSX.Element | null {
  const { label_1, label_0 } = naming;
  if (label_1 || label_0) {
    return (
      <span class="labels">
        {label_1 && <Text value={label_1} limit={40} />}
        {label_1 && label_0 && " / "}
        {label_0 && <Text value={label_0} limit={40} />}
      </span>
    );
  }
  const have = classesOf(explorer, concept, "A");
  if (!have.length) return null;
  return (
    <span class="labels">
      most of{" "}
      {have.slice(0, CLASSES).map(([k], index) => (
        <span key={k}>
          {index > 0 && ", "}
          <Text value={explorer.page.classes[k]!} limit={24} />
        </span>
      ))}
      {have.length > CLASSES && ` and ${have.length - CLASSES} more`}
    </span>
  );
}
