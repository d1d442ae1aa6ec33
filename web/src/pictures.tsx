import type { ComponentChildren, JSX } from "preact";
import { useState } from "preact/hooks";
import { entries, wrong, type Explorer } from "./explorer.ts";
import { useNeeds } from "./needs.ts";
import { format } from "./route.ts";
import { ClassName, classText, conceptLink } from "./parts.tsx";
import { LongText, Text } from "./text.tsx";
import { item, plain } from "./words.ts";

const FIRST = 300; // characters of a card
const WHOLE = 4000; // characters of a text in its own view, before one asks for more
const BESIDE = 3; // pictures beside a concept
const SMALL = 48; // px: smaller pictures are shown with their pixels, as often as fits

/** The address of an image; by its row where the id cannot stand in one or is another image's too. */
export function imageLink(explorer: Explorer, row: number, query: Record<string, string | number | null> = {}): string {
  const id = explorer.ids[row];
  const sound = id !== undefined && id !== "" && id.isWellFormed() && explorer.rowOf.get(id) === row;
  return sound ? format("image", id, query) : format("image", "", { row, ...query });
}

export function describe(explorer: Explorer, row: number): string {
  const label = explorer.labels[row];
  if (label === undefined || explorer.ids[row] === undefined) return `${item("Image")} ${row}`; // not loaded yet
  const says = label < 0 ? "class unknown" : classText(explorer, label);
  return `${item("Image")} ${plain(explorer.ids[row]!, 60)}: ${says}, predicted ${classText(explorer, explorer.exact[row]!)}`;
}

interface PictureProps {
  explorer: Explorer;
  row: number;
  size: number; // px of a picture
  decorative?: boolean;
}

/** What an image is on this page: its picture; of texts the first words; of rows the id. */
export const Picture = (props: PictureProps): JSX.Element => (isPictured(props.explorer) ? <Cell {...props} /> : <Card {...props} />);

export const isPictured = ({ page }: Explorer): boolean => page.items.kind === "image";

/** Whether there is more to show of an image than its id. */
export const isShown = ({ page }: Explorer): boolean => page.sprites !== null || page.items.texts;

const LINES: [number, string][] = [
  [48, "line"],
  [76, "short"],
]; // up to which size a card has one line, and a few

function Card({ explorer, row, size }: PictureProps): JSX.Element {
  const { texts } = explorer.page.items;
  useNeeds(explorer, [texts ? `texts@${row}` : "ids"]);
  const text = (texts ? explorer.texts : explorer.ids)[row];
  const lines = LINES.find(([most]) => size <= most)?.[1] ?? "";
  return (
    <span class={`text-card ${lines}`}>
      <span>{text === undefined ? "…" : <Text value={text.slice(0, 2 * FIRST).replace(/\s+/g, " ")} limit={FIRST} />}</span>
    </span>
  );
}

/** The address that a text is, where it is one of the web. */
export function addressIn(text: string | undefined): string | null {
  if (!text || !/^https?:\/\/[^\s/]\S*$/i.test(text.trim()) || !URL.canParse(text.trim())) return null;
  const { protocol, href } = new URL(text.trim());
  return protocol === "http:" || protocol === "https:" ? href : null;
}

/** One cell of a sprite sheet, which the browser loads when it comes into sight. */
function Cell(props: PictureProps): JSX.Element {
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

/** The picture at full size where the page has it, else its thumbnail; it leads to the file. Of texts the whole text. */
export const Original = (props: PictureProps): JSX.Element => (isPictured(props.explorer) ? <FullSize {...props} /> : <Whole {...props} />);

function Whole(props: PictureProps): JSX.Element {
  const { explorer, row } = props;
  const { texts } = explorer.page.items;
  useNeeds(explorer, texts ? [`texts@${row}`] : []);
  const text = explorer.texts[row];
  if (!texts || text === undefined) return <Card {...props} />;
  const address = addressIn(text);
  return (
    <div class="text-card whole">
      {address ? <Out address={address} text={text} /> : <LongText value={text} limit={WHOLE} />}
    </div>
  );
}

/** A link of the data: it leads out of the page, and tells the other side nothing of it. */
const Out = ({ address, text }: { address: string; text: string }): JSX.Element => (
  <a class="out" href={address} target="_blank" rel="noopener noreferrer">
    <Text value={text} limit={200} />
  </a>
);

function OutOf({ explorer, row }: { explorer: Explorer; row: number }): JSX.Element | null {
  useNeeds(explorer, [`texts@${row}`]);
  const address = addressIn(explorer.texts[row]);
  return address ? <Out address={address} text="Open the link" /> : null;
}

function FullSize({ explorer, row, size }: PictureProps): JSX.Element {
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
  return <ul class={!isPictured(explorer) ? "grid texts" : small(explorer) ? "grid" : "grid large"}>{children}</ul>;
}

/** A picture that leads to its image, with a line below. */
export function Thumb({ explorer, row, than, children }: { explorer: Explorer; row: number; than?: number; children?: ComponentChildren }): JSX.Element {
  return (
    <li class="thumb">
      <a href={imageLink(explorer, row, { than: than ?? null })}>
        <Picture explorer={explorer} row={row} size={small(explorer) ? 80 : 102} />
      </a>
      {explorer.page.items.texts && <OutOf explorer={explorer} row={row} />}
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

/** Beside a concept of an image: others that have it, also where this one lacks it. */
export function HaveIt({ explorer, row, concept, on }: { explorer: Explorer; row: number; concept: number; on: boolean }): JSX.Element | null {
  if (!isShown(explorer)) return null;
  return (
    <a class="have-it" href={conceptLink(concept)} tabIndex={-1} aria-hidden="true">
      {!on && <span class="muted">these have it</span>}
      {haveIt(explorer, concept, isPictured(explorer) ? BESIDE : 1, row).map((other) => (
        <Picture key={other} explorer={explorer} row={other} size={40} decorative />
      ))}
    </a>
  );
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
