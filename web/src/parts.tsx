// Small parts that several views use.
import type { ComponentChildren, JSX } from "preact";
import { isHeldOut, isReversed, shareOf, trainedShareOf, type Explorer } from "./explorer.ts";
import { Term, type TermKey } from "./glossary.tsx";
import { format, setQuery, useQuery } from "./route.ts";
import { namingOf, stateOf, useEdits, type State } from "./names.ts";
import { Text } from "./text.tsx";
import { count, item, percent, plain, plural, signed } from "./words.ts";

export const classLink = (k: number): string => format("class", k);
export const conceptLink = (concept: number, query: Record<string, number> = {}): string => format("concept", concept, query);

export function ClassName({ explorer, k, limit = 60 }: { explorer: Explorer; k: number; limit?: number }): JSX.Element {
  const name = explorer.page.classes[k];
  if (name === undefined) return <span class="muted">unknown</span>;
  return (
    <a href={classLink(k)}>
      <Text value={name} limit={limit} />
    </a>
  );
}

export const classText = (explorer: Explorer, k: number, limit = 60): string => {
  const name = explorer.page.classes[k];
  return name === undefined ? "unknown" : plain(name, limit);
};

/** Number and name, a link to the concept. */
export function ConceptName({ explorer, concept, limit = 60, query }: { explorer: Explorer; concept: number; limit?: number; query?: Record<string, number> }): JSX.Element {
  const { name, verified } = namingOf(explorer, concept, useEdits());
  return (
    <a class={name ? "concept-name named" : "concept-name"} href={conceptLink(concept, query)} title={name && !verified ? "unverified name" : undefined}>
      <span class="number">{concept}</span>{" "}
      {!name ? (
        <span class="muted">unnamed</span>
      ) : verified ? (
        <Text value={name} limit={limit} />
      ) : (
        <span class="doubt">
          <Text value={name} limit={limit} />
          <span aria-hidden="true"> ?</span>
          <span class="hidden"> (unverified)</span>
        </span>
      )}
    </a>
  );
}

/** How well one can tell from the class whether an image has it, in a sentence; null where nothing is known of it. */
export const classTells = (explorer: Explorer, concept: number): string | null => {
  const { balanced, dead } = explorer.concepts[concept]!;
  return balanced === null || dead ? null : `Whether ${item("an image")} has it can be told from its class in ${balanced < 0.75 ? "only " : ""}${percent(balanced)} of ${item("images")}`;
};

export const conceptText = (explorer: Explorer, concept: number): string => {
  const { name } = namingOf(explorer, concept);
  return name ? `Concept ${concept}, ${plain(name, 60)}` : `Concept ${concept}`;
};

const SAYS: Record<State, string> = { verified: "verified", unverified: "unverified", unnamed: "unnamed", dead: "dead" };

export function Badge({ explorer, concept }: { explorer: Explorer; concept: number }): JSX.Element {
  const naming = namingOf(explorer, concept, useEdits());
  const state = stateOf(explorer, concept, naming);
  return <span class={`badge ${naming.edited ? "edited" : state}`}>{naming.edited ? "edited" : SAYS[state]}</span>;
}

/** How many concepts are used, where not all are, and a way to see or hide the others: ?unused=show. */
export function UsedOnly({ used, total, of = "" }: { used: number; total: number; of?: string }): JSX.Element | null {
  const { unused = "" } = useQuery();
  if (used === total) return null;
  return (
    <p class="muted used-only" data-used={used}>
      {count(used)} of {plural(total, "concept")} {used === 1 ? "is" : "are"} used{of && ` ${of}`}; all others have the weight 0.{" "}
      <button type="button" class="quiet" onClick={() => setQuery({ unused: unused ? null : "show", page: null })}>
        {unused ? "Hide them" : "Show all"}
      </button>
    </p>
  );
}

/** A share of 0 to 1 as a bar and a number. */
export function Share({ value, digits = 0 }: { value: number | null; digits?: number }): JSX.Element {
  if (value === null || Number.isNaN(value)) return <span class="muted">–</span>;
  return (
    <span class="share">
      <span class="track" aria-hidden="true">
        <span class="fill" style={{ width: `${100 * Math.min(1, Math.max(0, value))}%` }} />
      </span>
      <span class="value">{percent(value, digits)}</span>
    </span>
  );
}

export function Reversed(): JSX.Element {
  return (
    <span class="badge unverified">
      <Term of="reversed">reversed</Term>
    </span>
  );
}

/** The share of a class's held-out images that have a concept, the training share below it, and whether they disagree. */
export function Shares({ explorer, k, concept }: { explorer: Explorer; k: number; concept: number }): JSX.Element {
  return (
    <span class="shares" data-trained={trainedShareOf(explorer, k, concept)}>
      <Share value={shareOf(explorer, k, concept)} />
      <Training>{isHeldOut(explorer, k) ? percent(trainedShareOf(explorer, k, concept)) : item("images alone")}</Training>
      {isReversed(explorer, k, concept) && <Reversed />}
    </span>
  );
}

/** What stands beside a figure of held-out images. */
export function Training({ children }: { children: ComponentChildren }): JSX.Element {
  return <span class="beside-held">training {children}</span>;
}

/** A signed number as a bar from the middle. */
export function Signed({ value, most, digits = 2 }: { value: number; most: number; digits?: number }): JSX.Element {
  const width = most > 0 ? (50 * Math.min(1, Math.abs(value) / most)).toFixed(2) : "0";
  return (
    <span class="signed">
      <span class="track" aria-hidden="true">
        <span class={`fill ${value < 0 ? "down" : "up"}`} style={{ width: `${width}%` }} />
      </span>
      <span class="value">{signed(value, digits)}</span>
    </span>
  );
}

interface SortHeaderProps {
  by: string;
  sort: string;
  down?: boolean; // the first press sorts downwards
  class?: string;
  term?: TermKey; // what the column holds
  children: ComponentChildren;
}

/** A column's header that sorts; ?sort=KEY or ?sort=-KEY. */
export function SortHeader({ by, sort, down = false, term, children, ...rest }: SortHeaderProps): JSX.Element {
  const now = sort === by ? "ascending" : sort === `-${by}` ? "descending" : "none";
  const next = now === "none" ? (down ? `-${by}` : by) : now === "ascending" ? `-${by}` : by;
  return (
    <th scope="col" aria-sort={now} class={rest.class}>
      <button type="button" class="sort" onClick={() => setQuery({ sort: next, page: null })}>
        {children}
        <span class="arrow" aria-hidden="true" />
      </button>
      {term && <Term of={term} />}
    </th>
  );
}

/** Options in our own words. */
export const worded = (options: [string, string][]): [string, string][] => options.map(([value, text]) => [value, item(text)]);

export function Choice(props: { label: string; value: string; options: [string, string][]; onChange: (value: string) => void; class?: string }): JSX.Element {
  return (
    <label class={`field ${props.class ?? ""}`}>
      <span>{props.label}</span>
      <select value={props.value} onChange={(event) => props.onChange(event.currentTarget.value)}>
        {props.options.map(([value, text]) => (
          <option key={value} value={value} selected={value === props.value}>
            {text}
          </option>
        ))}
      </select>
    </label>
  );
}

export function SearchField(props: { label: string; value: string; hint?: string; onInput: (value: string) => void }): JSX.Element {
  return (
    <label class="field search">
      <span>{props.label}</span>
      <input type="search" value={props.value} placeholder={props.hint} onInput={(event) => props.onInput(event.currentTarget.value)} />
    </label>
  );
}

export const pageOf = (query: Record<string, string>, total: number, size: number): number =>
  Math.min(Math.max(1, Math.floor(Number(query.page)) || 1), Math.max(1, Math.ceil(total / size)));

export function Pages({ page, size, total, what }: { page: number; size: number; total: number; what: string }): JSX.Element | null {
  const last = Math.ceil(total / size);
  if (last <= 1) return null;
  const go = (to: number) => (): void => setQuery({ page: to === 1 ? null : to });
  return (
    <nav class="pages" aria-label={`Pages of ${what}`}>
      <button type="button" disabled={page <= 1} onClick={go(page - 1)}>
        Previous
      </button>
      <span>
        {count((page - 1) * size + 1)}–{count(Math.min(page * size, total))} of {count(total)}
      </span>
      <button type="button" disabled={page >= last} onClick={go(page + 1)}>
        Next
      </button>
    </nav>
  );
}
