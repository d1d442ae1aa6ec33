import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { wrong, type Explorer } from "../explorer.ts";
import { bitOf } from "../bits.ts";
import { Choice, classText, conceptText, pageOf, Pages, SearchField } from "../parts.tsx";
import { Grid, Thumb, Verdict } from "../pictures.tsx";
import { setQuery, useQuery } from "../route.ts";
import { item, plural } from "../words.ts";
import { ImageMap } from "./map.tsx";

const SIZE = 60;
const SHOW: [string, string][] = [
  ["", "all"],
  ["wrong", "misclassified"],
  ["right", "classified right"],
  ["cut", "other prediction than the smooth network's"],
];

const AS: [string, string][] = [
  ["", "a list"],
  ["map", "a map"],
];

export function Images({ explorer }: { explorer: Explorer }): JSX.Element {
  const { q = "", class: of = "", show = "", as = "", has = "", lacks = "", view = "", page: asked = "1" } = useQuery();
  const classes = useMemo(
    (): [string, string][] => [["", "all"], ...explorer.page.classes.map((_, k): [string, string] => [String(k), classText(explorer, k, 50)])],
    [explorer],
  );
  const found = useMemo(() => {
    const words = q.trim().toLowerCase();
    const { labels, exact, smooth, ids, texts } = explorer;
    const bitAt = (row: number, concept: string): boolean => Number(concept) < explorer.page.concepts && bitOf(explorer.bits, Number(concept), row * explorer.width) === 1;
    return ids.flatMap((id, row) => {
      if (of !== "" && labels[row] !== Number(of)) return [];
      if (as !== "" && exact[row] !== Number(as)) return [];
      if (has !== "" && !bitAt(row, has)) return [];
      if (lacks !== "" && bitAt(row, lacks)) return [];
      if (show === "wrong" && !wrong(explorer, row)) return [];
      if (show === "right" && (labels[row]! < 0 || wrong(explorer, row))) return [];
      if (show === "cut" && (smooth[row]! < 0 || smooth[row] === exact[row])) return [];
      return id.toLowerCase().includes(words) || texts[row]?.toLowerCase().includes(words) ? [row] : [];
    });
  }, [explorer, q, of, show, as, has, lacks]);
  const concepts = useMemo(
    (): [string, string][] => [["", "any"], ...explorer.concepts.map((_, concept): [string, string] => [String(concept), conceptText(explorer, concept)])],
    [explorer],
  );
  const page = pageOf({ page: asked }, found.length, SIZE);
  return (
    <>
      <header class="view-head">
        <h1 tabIndex={-1}>{item("Images")}</h1>
      </header>
      <div class="tools" role="search">
        <Choice label="Class" value={of} options={classes} onChange={(value) => setQuery({ class: value, page: null })} />
        <Choice label="Predicted" value={as} options={classes} onChange={(value) => setQuery({ as: value, page: null })} />
        <Choice label="Show" value={show} options={SHOW} onChange={(value) => setQuery({ show: value, page: null })} />
        <Choice label="Has" value={has} options={concepts} onChange={(value) => setQuery({ has: value, page: null })} />
        <Choice label="Lacks" value={lacks} options={concepts} onChange={(value) => setQuery({ lacks: value, page: null })} />
        <Choice label="As" value={view} options={AS} onChange={(value) => setQuery({ view: value })} />
        <SearchField label="Search" hint={explorer.page.items.texts ? "words, id" : "id"} value={q} onInput={(value) => setQuery({ q: value, page: null })} />
        <p class="found" role="status">
          {plural(found.length, item("image"))}
        </p>
      </div>
      {found.length === 0 && <p class="empty">No {item("image")} matches.</p>}
      {view === "map" ? (
        <ImageMap explorer={explorer} rows={found} />
      ) : (
        <>
          <Grid explorer={explorer}>
            {found.slice((page - 1) * SIZE, page * SIZE).map((row) => (
              <Thumb key={row} explorer={explorer} row={row}>
                <Verdict explorer={explorer} row={row} />
              </Thumb>
            ))}
          </Grid>
          <Pages page={page} size={SIZE} total={found.length} what={item("images")} />
        </>
      )}
    </>
  );
}
