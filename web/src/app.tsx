import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { said } from "./announce.ts";
import type { Explorer } from "./explorer.ts";
import { Glossary } from "./glossary.tsx";
import { NamesBar } from "./names_bar.tsx";
import { namingOf } from "./names.ts";
import { useNeeds, type Need } from "./needs.ts";
import { arrival, route, type Route } from "./route.ts";
import { useStore } from "./store.ts";
import { Text } from "./text.tsx";
import { ThemeChoice } from "./theme.tsx";
import { ClassView } from "./views/class.tsx";
import { Classes } from "./views/classes.tsx";
import { Concept } from "./views/concept.tsx";
import { Concepts } from "./views/concepts.tsx";
import { Confusion } from "./views/confusion.tsx";
import { Doubtful } from "./views/doubtful.tsx";
import { ImageView } from "./views/image.tsx";
import { Images } from "./views/images.tsx";
import { Off } from "./views/off.tsx";
import { Overview } from "./views/overview.tsx";
import { Pair } from "./views/pair.tsx";
import { Waiting } from "./waiting.tsx";
import { item, plain } from "./words.ts";

const ROOMS: [string, string, string[]][] = [
  ["#/", "Overview", ["overview"]],
  ["#/concepts", "Concepts", ["concepts", "concept", "off"]],
  ["#/classes", "Classes", ["classes", "class"]],
  ["#/images", "Images", ["images", "image"]],
  ["#/confusion", "Mistakes", ["confusion", "pair", "doubtful"]],
];

function numberIn(text: string | null | undefined, below: number): number | null {
  return text && /^\d+$/.test(text) && Number(text) < below ? Number(text) : null;
}

/** The view of an address and its title; null where there is no such thing. */
function viewOf(explorer: Explorer, { view, id, query }: Route): [JSX.Element, string] | null {
  const { page } = explorer;
  if (view === "overview") return [<Overview explorer={explorer} />, "Overview"];
  if (view === "concepts") return [<Concepts explorer={explorer} />, "Concepts"];
  if (view === "classes") return [<Classes explorer={explorer} />, "Classes"];
  if (view === "images") return [<Images explorer={explorer} />, item("Images")];
  if (view === "confusion") return [<Confusion explorer={explorer} />, "Confusion matrix"];
  if (view === "doubtful") return [<Doubtful explorer={explorer} />, "Doubtful labels"];
  if (view === "off") return [<Off explorer={explorer} />, item("Concepts off in all images")];
  if (view === "pair") return [<Pair explorer={explorer} />, "What separates two classes"];
  if (view === "glossary") return [<Glossary />, "Glossary"];
  if (view === "concept") {
    const concept = numberIn(id, page.concepts);
    if (concept === null) return null;
    const { name } = namingOf(explorer, concept);
    return [<Concept explorer={explorer} concept={concept} />, `Concept ${concept}${name ? `: ${plain(name)}` : ""}`];
  }
  if (view === "class") {
    const k = numberIn(id, page.classes.length);
    return k === null ? null : [<ClassView explorer={explorer} k={k} />, `Class ${plain(page.classes[k]!)}`];
  }
  if (view === "image") {
    const row = id ? explorer.rowOf.get(id) : numberIn(query.row, page.images);
    return row === undefined || row === null ? null : [<ImageView explorer={explorer} row={row} />, `${item("Image")} ${plain(explorer.ids[row]!)}`];
  }
  return null;
}

/** What a view shows of single images, to be loaded before it. */
function needsOf(explorer: Explorer, { view, id, query }: Route): Need[] {
  const texts: Need[] = explorer.page.items.texts ? ["texts"] : []; // they are searched
  if (view === "concept" || view === "off") return ["rows", "ids", "bits"];
  if (view === "images") return query.has || query.lacks || query.colour ? ["rows", "ids", "bits", ...texts] : ["rows", "ids", ...texts];
  if (view === "doubtful") return ["rows", "ids", "doubtful"];
  if (view === "class" || view === "pair") return ["rows", "ids"];
  if (view !== "image") return [];
  const row = id ? explorer.rowOf.get(id) : numberIn(query.row, explorer.page.images);
  return row === undefined || row === null ? ["rows", "ids"] : ["rows", "ids", `bits@${row}`];
}

function Nothing(): JSX.Element {
  return (
    <header class="view-head">
      <h1 tabIndex={-1}>There is nothing here</h1>
      <p class="lead">
        The address names no concept, class or {item("image")} of this page. Go to the <a href="#/">overview</a>.
      </p>
    </header>
  );
}

export function App({ explorer }: { explorer: Explorer }): JSX.Element {
  const now = useStore(route);
  const announced = useStore(said);
  const ready = useNeeds(explorer, needsOf(explorer, now));
  const [view, title] = ready ? (viewOf(explorer, now) ?? [<Nothing />, "Nothing here"]) : [<Waiting />, "Reading the data"];
  const place = `${now.view}/${now.id ?? ""}/${now.view === "image" ? (now.query.row ?? "") : ""}`;
  const first = useRef(true);
  useEffect(() => {
    document.title = `${title} · ${plain(explorer.page.title, 60)}`;
  }, [title]);
  useEffect(() => {
    if (!ready) return;
    if (!first.current) {
      document.querySelector<HTMLElement>("main h1")?.focus({ preventScroll: true });
      scrollTo(0, arrival());
    }
    first.current = false;
  }, [place, ready]);
  const skip = (event: Event): void => {
    event.preventDefault(); // the address after # is the view's
    document.querySelector<HTMLElement>("main")?.focus();
  };
  return (
    <>
      <a class="skip" href="#main" onClick={skip}>
        Skip to the content
      </a>
      <header class="top">
        <div class="inner">
          <a class="brand" href="#/">
            <span class="mark" aria-hidden="true" />
            <Text value={explorer.page.title} limit={48} />
          </a>
          <nav aria-label="Main">
            {ROOMS.map(([href, text, views]) => (
              <a key={href} href={href} aria-current={views.includes(now.view) ? (views[0] === now.view ? "page" : "true") : undefined}>
                {item(text)}
              </a>
            ))}
          </nav>
          <ThemeChoice />
        </div>
      </header>
      <main id="main" tabIndex={-1}>
        <NamesBar explorer={explorer} always={now.view === "concepts"} />
        {view}
      </main>
      <footer>
        <p>
          <a href="#/glossary">Glossary</a>: every term of this page. Written by htaf {explorer.page.version}. This page sends nothing anywhere.
        </p>
      </footer>
      <p class="hidden" role="status" aria-live="polite" aria-atomic="true" id="announcement">
        {announced}
      </p>
    </>
  );
}
