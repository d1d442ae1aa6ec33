// What stands around a concept: others like it, unlike it, with it; and what the network does without it.
import type { JSX } from "preact";
import { entries, type Explorer } from "../explorer.ts";
import { Margins } from "../charts.tsx";
import { Term, type TermKey } from "../glossary.tsx";
import { ConceptName, Signed } from "../parts.tsx";
import { Grid, Thumb, Verdict } from "../pictures.tsx";
import { format } from "../route.ts";
import { count, item } from "../words.ts";

const KINDS: [string, TermKey, string][] = [
  ["Similar", "similar", "on in the same images"],
  ["Opposite", "opposite", "on where this one is off"],
  ["Together", "together", "beyond what the class explains"],
];

export function Related({ explorer, concept }: { explorer: Explorer; concept: number }): JSX.Element {
  const { related, relatedBy, page } = explorer;
  return (
    <section aria-labelledby="related">
      <h2 id="related">Related concepts</h2>
      <p class="muted">
        By the <Term of="correlation">correlation</Term> of two bits over training {item("images")}.
      </p>
      <div class="columns three">
        {KINDS.map(([title, term, help], kind) => {
          const row = kind * page.concepts + concept;
          const found = entries(related, row);
          return (
            <div key={term} data-kind={term}>
              <h3>
                <Term of={term}>{title}</Term> <span class="muted">{item(help)}</span>
              </h3>
              {found.length === 0 && <p class="empty">None.</p>}
              <ul class="rows">
                {found.map((other, place) => (
                  <li key={other}>
                    <ConceptName explorer={explorer} concept={other} limit={40} />
                    <Signed value={relatedBy[row * related.width + place]!} most={1} />
                  </li>
                ))}
              </ul>
            </div>
          );
        })}
      </div>
    </section>
  );
}

const STRENGTHS: [string, string][] = [
  ["Most strongly on", "the largest margins"],
  ["Barely on", "just above the threshold"],
  ["Barely off", "just below it"],
];

/** Images from the strongest to the barely on, where margins are known. */
export function Strengths({ explorer, concept }: { explorer: Explorer; concept: number }): JSX.Element | null {
  const { strongest, strengths, page } = explorer;
  if (!strongest) return null;
  const counts = strengths ? [...strengths.data.subarray(concept * strengths.width, (concept + 1) * strengths.width)] : [];
  const sum = (of: number[]): string => count(of.reduce((a, b) => a + b, 0));
  return (
    <section aria-labelledby="margins">
      <h2 id="margins">
        From strong to barely on <Term of="margin" />
      </h2>
      {counts.length > 0 && (
        <Margins
          counts={counts}
          label={`${item("Images")} by margin: ${sum(counts.slice(0, counts.length / 2))} below the threshold, ${sum(counts.slice(counts.length / 2))} above it`}
        />
      )}
      <div class="columns three">
        {STRENGTHS.map(([title, help], kind) => {
          const rows = entries(strongest, kind * page.concepts + concept);
          return (
            <div key={title}>
              <h3>
                {title} <span class="muted">{help}</span>
              </h3>
              {rows.length === 0 && <p class="empty">No {item("image")} on this page.</p>}
              <Grid explorer={explorer}>
                {rows.map((row) => (
                  <Thumb key={row} explorer={explorer} row={row}>
                    <Verdict explorer={explorer} row={row} />
                  </Thumb>
                ))}
              </Grid>
            </div>
          );
        })}
      </div>
    </section>
  );
}

/** The way to the accuracy when the concept is off in all images. */
export function Without({ concept }: { concept: number }): JSX.Element {
  return (
    <section aria-labelledby="without" class="card">
      <h2 id="without">Off in all {item("images")}</h2>
      <p class="actions">
        <a href={format("off", null, { off: concept })}>What the accuracy is without it, and which {item("images")} change</a>
      </p>
    </section>
  );
}
