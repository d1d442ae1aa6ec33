import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { entries, type Explorer } from "../explorer.ts";
import { ClassName, pageOf, Pages, SearchField, Share, SortHeader } from "../parts.tsx";
import { Picture } from "../pictures.tsx";
import { setQuery, useQuery } from "../route.ts";
import { count, item, plural } from "../words.ts";

const SIZE = 50;

export function Classes({ explorer }: { explorer: Explorer }): JSX.Element {
  const { q = "", sort = "number", page: asked = "1" } = useQuery();
  const found = useMemo(() => {
    const words = q.trim().toLowerCase();
    const down = sort.startsWith("-");
    const by = down ? sort.slice(1) : sort;
    const compared = new Intl.Collator("en", { numeric: true });
    const { classes, per_class } = explorer.page;
    const value = (k: number): number => {
      const numbers = per_class[k]!;
      return by === "images" ? numbers.images : by === "accuracy" ? (numbers.accuracy ?? 2) : k;
    };
    const rising = (a: number, b: number): number => (by === "name" ? compared.compare(classes[a]!, classes[b]!) : value(a) - value(b));
    return classes
      .flatMap((name, k) => (name.toLowerCase().includes(words) ? [k] : []))
      .sort((a, b) => (down ? -1 : 1) * rising(a, b) || a - b);
  }, [explorer, q, sort]);
  const page = pageOf({ page: asked }, found.length, SIZE);
  return (
    <>
      <header class="view-head">
        <h1 tabIndex={-1}>Classes</h1>
      </header>
      <div class="tools" role="search">
        <SearchField label="Search" hint="name" value={q} onInput={(value) => setQuery({ q: value, page: null })} />
        <p class="found" role="status">
          {plural(found.length, "class", "classes")}
        </p>
      </div>
      {found.length === 0 ? (
        <p class="empty">No class has such a name.</p>
      ) : (
        <table class="list classes">
          <caption class="hidden">Classes, {SIZE} at a time; accuracy on {explorer.page.part} {item("images")}</caption>
          <thead>
            <tr>
              <SortHeader by="name" sort={sort}>
                Class
              </SortHeader>
              <SortHeader by="accuracy" sort={sort} term="accuracy">
                Accuracy
              </SortHeader>
              <SortHeader by="images" sort={sort} down class="num">
                {item("Images")}
              </SortHeader>
            </tr>
          </thead>
          <tbody>
            {found.slice((page - 1) * SIZE, page * SIZE).map((k) => {
              const numbers = explorer.page.per_class[k]!;
              return (
                <tr key={k}>
                  <th scope="row" class="with-picture">
                    {explorer.page.sprites && entries(explorer.typical, k).slice(0, 1).map((row) => <Picture key={row} explorer={explorer} row={row} size={44} decorative />)}
                    <ClassName explorer={explorer} k={k} />
                  </th>
                  <td>
                    <Share value={numbers.accuracy} />
                  </td>
                  <td class="num">{count(numbers.images)}</td>
                </tr>
              );
            })}
          </tbody>
        </table>
      )}
      <Pages page={page} size={SIZE} total={found.length} what="classes" />
    </>
  );
}
