import type { JSX } from "preact";
import type { Explorer } from "../explorer.ts";
import { ClassName } from "../parts.tsx";
import { imageLink, Sprite } from "../pictures.tsx";
import { Text } from "../text.tsx";
import type { DoubtfulData } from "../types.ts";
import { count, item } from "../words.ts";

const KINDS: [string, string, string, string][] = [
  ["copy", "The same image, other labels", "Two images that are all but equal, with different labels: one of them is wrong.", "No two images that are all but equal have different labels."],
  [
    "class",
    "Like images of another class",
    "On the left an image that looks like another class than its label: a decision made without it is firm on that class, and so are the training images nearest to it. On the right the nearest of these.",
    "No image is firmly like those of another class than its own.",
  ],
];

/** One of two: its picture, label and prediction; it leads to its view where the page has it. */
function Side({ explorer, of, n }: { explorer: Explorer; of: DoubtfulData; n: number }): JSX.Element {
  const [label, exact, row] = [of.labels[n]!, of.exact[n]!, of.rows[n]!];
  const shown = (
    <>
      {of.sprites && <Sprite sheet={of.sprites} place={n} size={140} alt="" />}
      <span class="doubt-id">
        <Text value={of.ids[n]!} limit={60} />
      </span>
    </>
  );
  return (
    <div class="thumb">
      {row < 0 ? shown : <a href={imageLink(explorer, row)}>{shown}</a>}
      <span class="caption">
        label <ClassName explorer={explorer} k={label} limit={32} />
      </span>
      <span class="caption">
        predicted <ClassName explorer={explorer} k={exact} limit={32} />
      </span>
      <span class="caption muted">{of.parts[n]} part</span>
    </div>
  );
}

/** Labels that may be wrong, each beside the image that speaks against it. */
export function Doubtful({ explorer }: { explorer: Explorer }): JSX.Element {
  const of = explorer.doubtful!;
  return (
    <>
      <header class="view-head">
        <h1 tabIndex={-1}>Doubtful labels</h1>
        <p class="lead">
          {of.compared > 0
            ? item(`Of ${count(of.compared)} images, those of the training too. Look at each before you change its label: a rare view of a class is doubted as a wrong label is.`)
            : item("Nothing can be said: too few images have labels, or most have the very bits of another image.")}
        </p>
      </header>
      {of.compared > 0 &&
        KINDS.map(([kind, title, said, none]) => {
          const pairs = of.pairs.filter(([one]) => one === kind);
          return (
            <section key={kind} aria-labelledby={kind}>
              <h2 id={kind}>{item(title)}</h2>
              {pairs.length === 0 ? <p class="empty">{item(none)}</p> : <p class="muted">{item(said)}</p>}
              <ul class="doubts">
                {pairs.map(([, one, other]) => (
                  <li key={`${one} ${other}`} data-kind={kind}>
                    <Side explorer={explorer} of={of} n={one} />
                    <Side explorer={explorer} of={of} n={other} />
                  </li>
                ))}
              </ul>
            </section>
          );
        })}
    </>
  );
}
