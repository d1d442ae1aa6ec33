import type { JSX } from "preact";
import type { Explorer } from "../explorer.ts";
import { imageLink, Sprite } from "../pictures.tsx";
import { Text } from "../text.tsx";
import type { DoubtedImage } from "../types.ts";
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
function Side({ explorer, of, place }: { explorer: Explorer; of: DoubtedImage; place: number }): JSX.Element {
  const { sprites } = explorer.doubtful!;
  const shown = (
    <>
      {sprites && <Sprite sheet={sprites} place={place} size={140} alt="" />}
      <span class="doubt-id">
        <Text value={of.id} limit={60} />
      </span>
    </>
  );
  return (
    <div class="thumb">
      {of.row < 0 ? shown : <a href={imageLink(explorer, of.row)}>{shown}</a>}
      <span class="caption">
        label <Text value={of.label} limit={32} />
      </span>
      <span class={of.prediction === of.label ? "caption" : "caption doubted"}>
        predicted <Text value={of.prediction} limit={32} />
      </span>
      <span class="caption muted">{of.part} part</span>
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
          const pairs = [...of.pairs.entries()].filter(([, one]) => one.kind === kind);
          return (
            <section key={kind} aria-labelledby={kind}>
              <h2 id={kind}>{item(title)}</h2>
              {pairs.length === 0 ? <p class="empty">{item(none)}</p> : <p class="muted">{item(said)}</p>}
              <ul class="doubts">
                {pairs.map(([n, { image, like }]) => (
                  <li key={n} data-kind={kind}>
                    <Side explorer={explorer} of={image} place={2 * n} />
                    <Side explorer={explorer} of={like} place={2 * n + 1} />
                  </li>
                ))}
              </ul>
            </section>
          );
        })}
    </>
  );
}
