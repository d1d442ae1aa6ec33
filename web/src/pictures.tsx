import type { ComponentChildren, JSX } from "preact";
import { useState } from "preact/hooks";
import { entries, wrong, type Explorer } from "./explorer.ts";
import { format } from "./route.ts";
import { ClassName, classText } from "./parts.tsx";
import { Text } from "./text.tsx";
import { plain } from "./words.ts";

const SMALL = 48; // px: smaller pictures are shown with their pixels, as often as fits

/** The address of an image; by its row where the id cannot stand in one or is another image's too. */
export function imageLink(explorer: Explorer, row: number, query: Record<string, string | number | null> = {}): string {
  const id = explorer.ids[row];
  const sound = id !== undefined && id !== "" && id.isWellFormed() && explorer.rowOf.get(id) === row;
  return sound ? format("image", id, query) : format("image", "", { row, ...query });
}

export function describe(explorer: Explorer, row: number): string {
  const label = explorer.labels[row];
  if (label === undefined || explorer.ids[row] === undefined) return `Image ${row}`; // not loaded yet
  const says = label < 0 ? "class unknown" : classText(explorer, label);
  return `Image ${plain(explorer.ids[row]!, 60)}: ${says}, predicted ${classText(explorer, explorer.exact[row]!)}`;
}

/** One cell of a sprite sheet, which the browser loads when it comes into sight. */
export function Picture(props: { explorer: Explorer; row: number; size: number; decorative?: boolean }): JSX.Element {
  const { explorer, row, size, decorative = false } = props;
  const [broken, setBroken] = useState(false);
  const sheet = explorer.page.sprites;
  const alt = decorative ? "" : describe(explorer, row);
  const cells = sheet ? sheet.columns * sheet.rows : 1;
  const file = sheet?.files[Math.floor(row / cells)];
  if (!sheet || !file || broken) {
    return (
      <span class="picture none" role={decorative ? undefined : "img"} aria-label={alt || undefined} style={{ width: `${size}px`, height: `${size}px` }}>
        no picture
      </span>
    );
  }
  const longer = Math.max(sheet.width, sheet.height);
  const pixelated = longer < SMALL;
  const scale = pixelated ? Math.max(1, Math.floor(size / longer)) : size / longer;
  const cell = row % cells;
  const style = {
    width: `${sheet.columns * sheet.width * scale}px`,
    height: `${sheet.rows * sheet.height * scale}px`,
    left: `${-(cell % sheet.columns) * sheet.width * scale}px`,
    top: `${-Math.floor(cell / sheet.columns) * sheet.height * scale}px`,
    imageRendering: pixelated ? "pixelated" : "auto",
  };
  return (
    <span class="picture" style={{ width: `${sheet.width * scale}px`, height: `${sheet.height * scale}px` }}>
      <img src={file} alt={alt} loading="lazy" decoding="async" draggable={false} style={style} onError={() => setBroken(true)} />
    </span>
  );
}

/** The file of the picture at full size, where the page has it. */
export function originalFile({ page, originals }: Explorer, row: number): string | null {
  return page.originals && originals.has(row) ? `${page.originals.folder}/${String(row).padStart(6, "0")}.webp` : null;
}

/** The picture at full size where the page has it, else its thumbnail; it leads to the file. */
export function Original({ explorer, row, size }: { explorer: Explorer; row: number; size: number }): JSX.Element {
  const [broken, setBroken] = useState(false);
  const file = originalFile(explorer, row);
  if (!file || broken) return <Picture explorer={explorer} row={row} size={Math.min(size, 240)} />;
  return (
    <a class="original" href={file} target="_blank" rel="noreferrer" title="At full size">
      <img src={file} alt={describe(explorer, row)} decoding="async" style={{ maxWidth: "100%", maxHeight: `${size}px` }} onError={() => setBroken(true)} />
    </a>
  );
}

export const small = ({ page }: Explorer): boolean => !page.sprites || Math.max(page.sprites.width, page.sprites.height) < SMALL;

/** Pictures side by side. */
export function Grid({ explorer, children }: { explorer: Explorer; children: ComponentChildren }): JSX.Element {
  return <ul class={small(explorer) ? "grid" : "grid large"}>{children}</ul>;
}

/** A picture that leads to its image, with a line below. */
export function Thumb({ explorer, row, than, children }: { explorer: Explorer; row: number; than?: number; children?: ComponentChildren }): JSX.Element {
  return (
    <li class="thumb">
      <a href={imageLink(explorer, row, { than: than ?? null })}>
        <Picture explorer={explorer} row={row} size={small(explorer) ? 80 : 102} />
      </a>
      {children !== undefined && <span class="caption">{children}</span>}
    </li>
  );
}

/** Rows of images that have a concept: the strongest where margins are known, else random ones. */
export function haveIt(explorer: Explorer, concept: number, count: number, but = -1): number[] {
  return entries(explorer.strongest ?? explorer.samples, concept)
    .filter((row) => row !== but)
    .slice(0, count);
}

/** The class, and what the image was taken for where that is another. */
export function Verdict({ explorer, row }: { explorer: Explorer; row: number }): JSX.Element {
  const label = explorer.labels[row]!;
  return (
    <>
      {label < 0 ? <span class="muted">class unknown</span> : <ClassName explorer={explorer} k={label} limit={24} />}
      {wrong(explorer, row) && (
        <span class="wrong">
          taken for <Text value={explorer.page.classes[explorer.exact[row]!] ?? "unknown"} limit={24} />
        </span>
      )}
    </>
  );
}
