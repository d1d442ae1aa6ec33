// Every term of the page in a sentence: as a tooltip where it stands, and all of them in one view.
import type { ComponentChildren, JSX } from "preact";
import { useId, useLayoutEffect, useRef, useState } from "preact/hooks";
import { item } from "./words.ts";

const TERMS = {
  accuracy: ["Accuracy", "The share of images whose class is predicted right."],
  "accuracy from the class": [
    "Guessed from the class",
    "How often one guesses the bit right who knows the image's class alone and takes what most training images of that class have. Rare concepts score high whatever they mean.",
  ],
  adds: ["Adds", "What a concept adds to a logit, or to how far one class is ahead of another, counted from the average image. That has each concept in part, so a concept that is off adds something too: what the average image has and this one lacks."],
  ahead: ["Ahead by", "How much more the predicted class has than another one: the difference of their logits. Above 0, the predicted class wins."],
  agreement: [
    "Agreement",
    "Whether the name comes out the same when it is looked for again. For language models kappa: 1 is full agreement, 0 what chance gives.",
  ],
  auprc: [
    "AUPRC",
    "Area under the curve of precision and recall, when images are sorted by how well the name fits them. 1 is perfect; chance gives the share of images with the concept.",
  ],
  "average image": ["Average image", "An imagined image that has each concept to the degree in which training images have it. Reasons are counted from there."],
  "balanced accuracy": [
    "Balanced accuracy",
    "The mean of two shares: of images with the concept that are found, and of images without it. Chance gives 50%, however rare the concept is.",
  ],
  bias: ["Bias", "What the logit of a class is before any concept is added."],
  binarity: ["Outputs almost 0 or 1", "The share of the smooth network's outputs that are almost 0 or 1: above 0.99 or below 0.01."],
  bit: ["Bit", "A concept of an image: 1, on, when the image has it; 0, off, when it lacks it. There is nothing between."],
  chance: [
    "May be chance",
    "The held-out images of the two classes have the concept in shares that differ by no more than twice the standard error of the difference: with so few images, classes that are alike in it would often differ as much. Of twenty concepts in which two classes are alike, about one is not marked.",
  ],
  concept: ["Concept", "One bit of the network's last layer. What it means was not given to the network; names were found afterwards."],
  contribution: ["Contribution", "What one concept adds to the decision: its bit less its share of training images, times its weight, or times the difference of two weights where two classes are compared. Together with what the average image has, the contributions give the logit, or how far the class is ahead, exactly."],
  correlation: ["Correlation", "From −1 to 1: 1 when two things always go together, 0 when one says nothing about the other, −1 when they exclude each other."],
  counterfactual: ["Counterfactual", "The fewest concepts that must be flipped so that another class wins. Proven: no smaller number would do."],
  dead: ["Dead", "A concept that is always off or always on in training images. It tells nothing apart."],
  "effect on the logits": [
    "Effect on the logits",
    "How much the concept moves the logits over all images: the spread of its bit times the spread of its weights over the classes. Ranks are by it.",
  ],
  exact: ["Exact bits", "The network as it is used: each output cut to 0 or 1, and the decision made from these bits alone."],
  f1: ["F1", "The harmonic mean of precision and recall of the images that the name picks. 1 is perfect."],
  flip: ["Flip", "To turn a bit over, on to off or off to on, and see what the classifier would say."],
  gap: ["Change by the cut to bits", "Accuracy of the exact network minus that of the smooth one. Below 0, the bits cost accuracy."],
  group: ["Group", "A: most of the class's images have the concept. B: few have it. Mixed: neither. Of held-out images where there are some; names were looked for in the groups of training images."],
  "held out": ["Held out", "Classes or images that had no part in finding the name. A name that sorts them too is more than a description of what was looked at."],
  "largest weight": ["Largest weight", "The largest weight of the concept for any class, whatever its sign."],
  logit: ["Logit", "The sum of a class: its bias and the weights of all concepts that the image has. The class with the largest logit is predicted."],
  map: [
    "Map",
    "How much each place of the picture adds to the concept's pre-activation: the exact shares, whose sum is the margin. Orange speaks for the bit, blue against it. A place of the network's last layer sees more of the picture than it covers, so a map says what was added where, not where an object ends.",
  ],
  margin: ["Margin", "How far a concept's pre-activation lies above or below the threshold at which the bit turns. Near 0, the bit is barely on or barely off."],
  mistake: ["Mistake", "An image whose class is known and whose predicted class is another one."],
  nearest: ["Nearest", "The images whose bits differ from these in the fewest places (Hamming distance)."],
  "only class": ["Says no more than the class", "The bit follows one class, and the name fits its images as the class does: it may describe the class, not a quality."],
  opposite: ["Opposite", "Concepts with the most negative correlation over training images: where one is on, the other is off."],
  "p-value": ["p", "How often a name does as well by chance, when the classes are shuffled. Small is good."],
  part: ["Part", "Training images taught the network, validation images chose when to stop, test images had no part in either."],
  rank: ["Rank", "Place of the concept by its effect on the logits: 1 moves them most."],
  region: ["Region", "The box around the highest value of a map and all places joined to it that reach half of that value. None where nothing speaks for the bit."],
  separation: [
    "Separation",
    "Of two classes A and B: the difference of their shares of images with the concept, times the difference of its two weights. All concepts together give how much further A is ahead of B for images of A than for those of B, on average.",
  ],
  reversed: ["Reversed", "Held-out images say the opposite of training images, and the shares differ by more than chance explains: by more than twice the standard error of the difference. Of two classes: the other one has the concept more often. Of one class: most of its images have the concept in the one and lack it in the other."],
  share: ["Share", "Of a class's images that are held out, those that have the concept. Training images stand beside it, and in its place where no others are there: the network was fitted to them, so their shares look too good."],
  similar: ["Similar", "Concepts with the highest correlation over training images: they are on in the same images."],
  smooth: ["Smooth", "The network as it was trained, whose outputs lie between 0 and 1, before they are cut to bits."],
  softmax: ["Softmax", "The logits as shares that sum to 100%. Not a probability that one should trust without checking."],
  status: ["Status", "What the check of a name came to, or why there was none."],
  together: [
    "Together",
    "Concepts that come and go together among images of one and the same class: the correlation that is left when the class is known.",
  ],
  typical: ["Typical", "The images of a class whose bits are nearest to what images of the class have on the whole."],
  unverified: ["Unverified", "Nothing has shown that the name fits. It may say nothing true."],
  verified: ["Verified", "The name alone sorts classes or images that had no part in choosing it, better than chance."],
  weight: ["Weight", "What a concept adds to the logit of a class when it is on. Above 0 it speaks for the class, below 0 against it."],
} as const satisfies Record<string, readonly [string, string]>;

export type TermKey = keyof typeof TERMS;

const EDGE = 8; // px that a tooltip keeps from the window's sides

interface TermProps {
  of: TermKey;
  children?: ComponentChildren; // the word as it stands in its sentence; none: a question mark beside a word
}

/** A word with its meaning: shown when a pointer is over it, when the keyboard reaches it, and when it is pressed. */
export function Term({ of, children }: TermProps): JSX.Element {
  const [shown, setShown] = useState(false);
  const [pinned, setPinned] = useState(false);
  const [place, setPlace] = useState({ left: 0, top: 0 });
  const button = useRef<HTMLButtonElement>(null);
  const tip = useRef<HTMLSpanElement>(null);
  const id = useId();
  const [word, text] = TERMS[of];
  const open = shown || pinned;
  useLayoutEffect(() => {
    if (!open) return;
    const move = (): void => {
      const [at, size] = [button.current!.getBoundingClientRect(), tip.current!.getBoundingClientRect()];
      const left = Math.max(EDGE, Math.min(at.left, document.documentElement.clientWidth - size.width - EDGE));
      const above = at.bottom + 4 + size.height > innerHeight && at.top - 4 - size.height > 0;
      setPlace({ left, top: above ? at.top - 4 - size.height : at.bottom + 4 });
    };
    move();
    const hide = (): void => (setShown(false), setPinned(false));
    const key = (event: KeyboardEvent): void => {
      if (event.key === "Escape") hide();
    };
    const press = (event: Event): void => {
      if (!button.current?.contains(event.target as Node) && !tip.current?.contains(event.target as Node)) hide();
    };
    addEventListener("scroll", move, true);
    addEventListener("keydown", key, true);
    addEventListener("pointerdown", press, true);
    return () => {
      removeEventListener("scroll", move, true);
      removeEventListener("keydown", key, true);
      removeEventListener("pointerdown", press, true);
    };
  }, [open]);
  return (
    <span class="term-place" onMouseEnter={() => setShown(true)} onMouseLeave={() => setShown(false)}>
      <button
        ref={button}
        type="button"
        class={children === undefined ? "term mark" : "term"}
        aria-label={children === undefined ? `What is: ${word}` : undefined}
        aria-describedby={open ? id : undefined}
        onFocus={() => setShown(true)}
        onBlur={() => (setShown(false), setPinned(false))}
        onClick={() => setPinned(true)}
      >
        {children ?? "?"}
      </button>
      {open && (
        <span ref={tip} id={id} role="tooltip" class="tip" style={{ left: `${place.left}px`, top: `${place.top}px` }}>
          {item(text)}
        </span>
      )}
    </span>
  );
}

export function Glossary(): JSX.Element {
  return (
    <>
      <header class="view-head">
        <h1 tabIndex={-1}>Glossary</h1>
        <p class="lead">Every term of this page. Where a word is underlined with dots, a pointer or the keyboard shows the same text.</p>
      </header>
      <dl class="glossary">
        {Object.entries(TERMS)
          .sort(([, a], [, b]) => a[0].localeCompare(b[0], "en"))
          .map(([key, [word, text]]) => (
            <div key={key} data-term={key}>
              <dt>{item(word)}</dt>
              <dd>{item(text)}</dd>
            </div>
          ))}
      </dl>
    </>
  );
}
