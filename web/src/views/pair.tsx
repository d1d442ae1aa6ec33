import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { entries, type Explorer } from "../explorer.ts";
import { Term } from "../glossary.tsx";
import { confusionOf, pairIsHeldOut, separating } from "../pairs.ts";
import { Choice, ClassName, classText, ConceptName, conceptText, MayBeChance, Reversed, Share, Signed, Training } from "../parts.tsx";
import { Grid, Thumb } from "../pictures.tsx";
import { format, setQuery, useQuery } from "../route.ts";
import { count, decimal, item, percent, plural, signed } from "../words.ts";
import { Colours } from "../seen.tsx";
import { Needs } from "../waiting.tsx";
import { ShortName } from "./decision.tsx";
import { OfClass } from "./of_class.tsx";

const SIZE = 16;
const SHOWN = 8;
const STRIPS = 3;

export const pairLink = (a: number, b: number): string => format("pair", null, { a, b });

const numberIn = (text: string | undefined, below: number, other: number): number => (text && /^\d+$/.test(text) && Number(text) < below ? Number(text) : other);

/** Two classes: the concepts that separate them, and the images that were mistaken. */
export function Pair({ explorer }: { explorer: Explorer }): JSX.Element {
  const query = useQuery();
  const { classes, few, part, per_class } = explorer.page;
  const [first, second] = explorer.mistakes[0] ?? [0, Math.min(1, classes.length - 1)];
  const [a, b] = [numberIn(query.a, classes.length, first), numberIn(query.b, classes.length, second)];
  const [shown, setShown] = useState(SIZE);
  const found = useMemo(() => separating(explorer, a, b), [explorer, a, b]);
  const confusion = useMemo(() => confusionOf(explorer), [explorer]);
  const options = useMemo(() => classes.map((_, k): [string, string] => [String(k), classText(explorer, k, 50)]), [explorer]);
  const heldOut = pairIsHeldOut(explorer, a, b);
  const shownPart = heldOut ? part : "training";
  const [total, trained] = found.reduce(([held, before], one) => [held + one.held.value, before + one.trained.value], [0, 0]);
  const learned = found.filter((one) => one.trained.value > 0);
  const lost = learned.filter((one) => one.held.value <= 0).length;
  const most = Math.max(1e-9, ...found.slice(0, 1).map(({ held }) => Math.abs(held.value)));
  const images = (of: number, as: number): number => confusion.get(of)?.get(as) ?? 0;
  const both = found.filter(({ held, trained }) => held.value > 0 && trained.value > 0);
  const sure = both.filter(({ chance }) => !chance);
  const clear = (sure.length ? sure : both).slice(0, 3);
  return (
    <>
      <header class="view-head">
        <h1 tabIndex={-1}>What separates two classes</h1>
      </header>
      <div class="tools">
        <Choice label="Class A" value={String(a)} options={options} onChange={(value) => setQuery({ a: value })} />
        <Choice label="Class B" value={String(b)} options={options} onChange={(value) => setQuery({ b: value })} />
        <button type="button" onClick={() => setQuery({ a: b, b: a })}>
          Swap
        </button>
        <p class="found">
          <a href="#/confusion">Confusion matrix</a>
        </p>
      </div>
      {a === b ? (
        <p class="empty">Choose two different classes.</p>
      ) : (
        <>
          <section aria-labelledby="said">
            <h2 id="said" class="hidden">
              In a sentence
            </h2>
            <p class="sentence">
              <ClassName explorer={explorer} k={a} limit={40} /> is told from <ClassName explorer={explorer} k={b} limit={40} />{" "}
              {both.length > 0 && sure.length === 0 ? item(`by nothing that ${part} images show beyond chance. The largest differences:`) : "most of all by"}{" "}
              {clear.map(({ concept, held, trained, chance }, place) => (
                <span key={concept}>
                  {place > 0 && (place === clear.length - 1 ? " and " : ", ")}
                  <ShortName explorer={explorer} concept={concept} query={{ a, b }} />{" "}
                  <span class="muted">
                    ({percent(held.shares[0])} of A, {percent(held.shares[1])} of B
                    {heldOut && `; training ${percent(trained.shares[0])}, ${percent(trained.shares[1])}`}
                    {chance && "; may be chance"})
                  </span>
                </span>
              ))}
              {clear.length === 0 && (heldOut ? `nothing that both the training and the ${part} ${item("images")} show` : item("nothing that the training images show"))}.
            </p>
            {heldOut ? (
              <p class="muted">
                Shares of the {count(per_class[a]!.images)} {part} {item("images")} of A and the {count(per_class[b]!.images)} of B.
                {Math.min(per_class[a]!.images, per_class[b]!.images) < few && item(" These are few: one image more or less moves a share far.")}
              </p>
            ) : (
              <p class="warn" data-not-held-out>
                Shares of training {item("images")} alone: {part === "train" ? item("this page shows the training images") : `there are no ${part} ${item("images")} of ${per_class[a]!.images ? "B" : per_class[b]!.images ? "A" : "A and B"}`}. Other {item("images")} may look otherwise.
              </p>
            )}
            <p class="muted">
              Of the {part} {item("images")}, {plural(images(a, b), item("image"))} of A {images(a, b) === 1 ? "is" : "are"} taken for B and {count(images(b, a))} of B for A;{" "}
              {count(images(a, a))} and {count(images(b, b))} are right.
            </p>
          </section>
          <section aria-labelledby="separating">
            <h2 id="separating">
              Concepts that separate them <Term of="separation" />
            </h2>
            <p class="muted">
              Together they say how far A is <Term of="ahead">ahead</Term> of B on average: by {decimal(total)} more for {shownPart} {item("images")} of A than for those of B
              {heldOut && ` (training: ${decimal(trained)})`}. Below 0: the concept misleads.
              {heldOut && ` Of the ${plural(learned.length, "concept")} that separate training ${item("images")}, ${count(lost)} do not separate ${part} ${item("images")}, or the wrong way round. The order is that of the ${part} ${item("images")}, so the first look somewhat better than on new ones.`}
            </p>
            <Needs explorer={explorer} of={["bits"]}>
              {() => (
                <div class="columns three pair-strips">
                  {[...new Set([...clear, ...found])].slice(0, STRIPS).map(({ concept, held: { shares } }) => (
                    <div key={concept} data-strip={concept}>
                      <h3>
                        <ConceptName explorer={explorer} concept={concept} limit={40} query={{ a, b }} />
                      </h3>
                      <div class="two-sides">
                        {[a, b].map((k, side) => (
                          <div key={k}>
                            <p class="side-name">
                              <strong>{side === 0 ? "A" : "B"}</strong> <ClassName explorer={explorer} k={k} limit={40} />
                            </p>
                            <OfClass explorer={explorer} concept={concept} k={k} count={1} on={shares[side]! > shares[1 - side]!} />
                          </div>
                        ))}
                      </div>
                    </div>
                  ))}
                </div>
              )}
            </Needs>
            {explorer.page.maps && <Colours explorer={explorer} />}
            <table class="list pair">
              <caption class="hidden">Concepts, those that separate the two classes most first</caption>
              <thead>
                <tr>
                  <th scope="col">Concept</th>
                  <th scope="col" class="num">
                    <Term of="separation">Separation</Term>
                  </th>
                  <th scope="col">
                    <Term of="share">Share</Term> of A
                  </th>
                  <th scope="col">Share of B</th>
                  <th scope="col" class="num wide-only">
                    <Term of="weight">Weight</Term> for A
                  </th>
                  <th scope="col" class="num wide-only">
                    Weight for B
                  </th>
                </tr>
              </thead>
              <tbody>
                {found.slice(0, shown).map(({ concept, held, trained, weights, chance, reversed }) => (
                  <tr key={concept} data-concept={concept} data-chance={chance} data-separation={held.value} data-trained={trained.value}>
                    <th scope="row">
                      <ConceptName explorer={explorer} concept={concept} limit={48} query={{ a, b }} />
                      {(chance || reversed) && (
                        <span class="marks">
                          {chance && <MayBeChance />}
                          {reversed && <Reversed />}
                        </span>
                      )}
                    </th>
                    <td>
                      <Signed value={held.value} most={most} />
                      {heldOut && <Training>{signed(trained.value)}</Training>}
                    </td>
                    {held.shares.map((share, side) => (
                      <td key={side}>
                        <Share value={share} />
                        {heldOut && <Training>{percent(trained.shares[side]!)}</Training>}
                      </td>
                    ))}
                    <td class="num wide-only">{decimal(weights[0])}</td>
                    <td class="num wide-only">{decimal(weights[1])}</td>
                  </tr>
                ))}
              </tbody>
            </table>
            {found.length > shown && (
              <p class="actions">
                <button type="button" onClick={() => setShown(shown + 100)}>
                  {count(Math.min(100, found.length - shown))} more concepts
                </button>
              </p>
            )}
          </section>
          <section aria-labelledby="pictures">
            <h2 id="pictures">{item("Images")}</h2>
            <div class="columns">
              <Side key={`a${a}`} explorer={explorer} title="Typical of A" rows={entries(explorer.typical, a)} k={a} />
              <Side key={`b${b}`} explorer={explorer} title="Typical of B" rows={entries(explorer.typical, b)} k={b} />
              <Mistaken key={`m${a},${b}`} explorer={explorer} title="A, taken for B" of={a} as={b} best={found[0]?.concept ?? 0} />
              <Mistaken key={`m${b},${a}`} explorer={explorer} title="B, taken for A" of={b} as={a} best={found[0]?.concept ?? 0} />
            </div>
          </section>
        </>
      )}
    </>
  );
}

function Side({ explorer, title, rows, k }: { explorer: Explorer; title: string; rows: number[]; k: number }): JSX.Element {
  return (
    <div class="side">
      <h3>
        {title}: <ClassName explorer={explorer} k={k} limit={32} />
      </h3>
      {rows.length === 0 && <p class="empty">No {item("image")} on this page.</p>}
      <Grid explorer={explorer}>
        {rows.slice(0, SHOWN).map((row) => (
          <Thumb key={row} explorer={explorer} row={row} />
        ))}
      </Grid>
    </div>
  );
}

function Mistaken({ explorer, title, of, as, best }: { explorer: Explorer; title: string; of: number; as: number; best: number }): JSX.Element {
  const rows = useMemo(() => {
    const found: number[] = [];
    for (let row = 0; row < explorer.page.images; row++) if (explorer.labels[row] === of && explorer.exact[row] === as) found.push(row);
    return found;
  }, [explorer, of, as]);
  return (
    <div class="side">
      <h3>
        {title} <span class="muted">{count(rows.length)}</span>
      </h3>
      {rows.length === 0 && <p class="empty">None on this page.</p>}
      <Grid explorer={explorer}>
        {rows.slice(0, SHOWN).map((row) => (
          <Thumb key={row} explorer={explorer} row={row} than={of} />
        ))}
      </Grid>
      {rows.length > SHOWN && (
        <p>
          <a href={format("images", null, { class: of, as })} aria-label={`All ${item("images")} of ${classText(explorer, of)} taken for ${classText(explorer, as)}`}>
            All {count(rows.length)}
          </a>
        </p>
      )}
      {rows.length > 0 && (
        <p>
          <a href={format("images", null, { class: of, as, has: best })}>Those with {conceptText(explorer, best)}</a>
        </p>
      )}
    </div>
  );
}
