// What the overview begins with: one decision, and all concepts beside all classes.
import type { JSX } from "preact";
import { useCallback, useMemo } from "preact/hooks";
import { bitsOf, isHeldOut, shareOf, trainedShareOf, weightOf, usedConcepts, wrong, type Explorer } from "../explorer.ts";
import { Term } from "../glossary.tsx";
import { HeatMap, type Cell } from "../heatmap.tsx";
import { logits } from "../head.ts";
import { Choice, ClassName, classText, ConceptName, conceptLink, worded } from "../parts.tsx";
import { imageLink, Picture } from "../pictures.tsx";
import { Needs } from "../waiting.tsx";
import { firstTwo } from "../reasons.ts";
import { format, setQuery, useQuery } from "../route.ts";
import { count, item, percent, signed } from "../words.ts";
import { Decision } from "./decision.tsx";

export function OneDecision({ explorer, given }: { explorer: Explorer; given: number }): JSX.Element {
  const { decision = "" } = useQuery();
  const row = /^\d+$/.test(decision) && Number(decision) < explorer.page.images ? Number(decision) : given;
  const another = (): void => setQuery({ decision: Math.floor(Math.random() * explorer.page.images) });
  return (
    <section aria-labelledby="decision" class="card decision">
      <div class="with-action">
        <h2 id="decision">One decision, explained</h2>
        <button type="button" onClick={another}>
          Another {item("image")}
        </button>
      </div>
      <Needs explorer={explorer} of={["rows", `bits@${row}`]}>
        {() => <Explained explorer={explorer} row={row} />}
      </Needs>
    </section>
  );
}

function Explained({ explorer, row }: { explorer: Explorer; row: number }): JSX.Element {
  const bits = bitsOf(explorer, row);
  const [k, than] = useMemo(() => firstTwo(logits(explorer.head, bits)), [explorer, row]);
  return (
    <div class="decision-parts">
      <div class="decision-image">
        <a href={imageLink(explorer, row)}>
          <Picture key={row} explorer={explorer} row={row} size={200} />
        </a>
        <p class="caption">
          <ClassName explorer={explorer} k={explorer.labels[row]!} limit={32} />
          {wrong(explorer, row) && <span class="wrong">classified wrong</span>}
        </p>
      </div>
      <div>
        <Decision explorer={explorer} row={row} bits={bits} k={k} than={than} subject={item("This image is taken for")} />
      </div>
    </div>
  );
}

const FEW = 60;
const MOST = 512;
const CLASSES = 200;
const SHADES: [string, string][] = [
  ["", "share of images with it"],
  ["weight", "weight in the decision"],
];

/** Concepts across, classes down, similar ones beside each other. */
export function ConceptsByClasses({ explorer }: { explorer: Explorer }): JSX.Element {
  const { map = "", shade = "" } = useQuery();
  const { classes, per_class } = explorer.page;
  const concepts = useMemo(() => usedConcepts(explorer).length, [explorer]);
  const columns = useMemo(() => {
    const limit = map === "all" ? MOST : FEW;
    return [...explorer.conceptOrder].filter((concept) => explorer.used[concept] && explorer.concepts[concept]!.rank <= limit);
  }, [explorer, map]);
  const rows = useMemo(() => {
    const kept = new Set([...classes.keys()].sort((a, b) => per_class[b]!.images - per_class[a]!.images || a - b).slice(0, CLASSES));
    return [...explorer.classOrder].filter((k) => kept.has(k));
  }, [explorer]);
  const names = useMemo(() => rows.map((k) => classText(explorer, k, 40)), [explorer, rows]);
  const most = useMemo(
    () => columns.reduce((top, concept) => rows.reduce((max, k) => Math.max(max, Math.abs(weightOf(explorer, k, concept))), top), 1e-9),
    [explorer, columns, rows],
  );
  const value = useCallback(
    ({ row, column }: Cell): number => {
      const [k, concept] = [rows[row]!, columns[column]!];
      return shade === "weight" ? weightOf(explorer, k, concept) / most : shareOf(explorer, k, concept);
    },
    [explorer, rows, columns, shade, most],
  );
  const said = ({ row, column }: Cell): JSX.Element => {
    const [k, concept] = [rows[row]!, columns[column]!];
    return (
      <>
        <span>
          <ConceptName explorer={explorer} concept={concept} limit={40} /> in <ClassName explorer={explorer} k={k} limit={40} />
        </span>
        <span>
          <strong>{percent(shareOf(explorer, k, concept))}</strong> of its {isHeldOut(explorer, k) ? explorer.page.part : "training"} {item("images")} have it
          {isHeldOut(explorer, k) && ` (training: ${percent(trainedShareOf(explorer, k, concept))})`}; <Term of="weight">weight</Term>{" "}
          <strong>{signed(weightOf(explorer, k, concept))}</strong>
        </span>
        <a href={format("images", null, { class: k, has: concept })}>Its {item("images")} with the concept</a>
      </>
    );
  };
  if (!columns.length || !rows.length) return <></>;
  const start = { row: Math.floor(rows.length / 2), column: Math.floor(columns.length / 2) };
  return (
    <section aria-labelledby="map">
      <h2 id="map">Concepts and classes</h2>
      <p class="muted">
        Across: <Term of="concept">concepts</Term>. Down: classes{rows.length < classes.length && ` (${count(rows.length)} of ${count(classes.length)}, those with most ${item("images")})`}. Similar ones stand
        together.{" "}
        {shade === "weight" ? "Orange: the concept speaks for the class; blue: against it." : item("The stronger the colour of a cell, the more of the class's images have the concept.")}
      </p>
      <div class="tools">
        <Choice
          label="Concepts"
          value={map}
          options={[
            ["", concepts > FEW ? `the ${FEW} that move the logits most` : "all"],
            ...(concepts > FEW ? [["all", concepts > MOST ? `the first ${MOST}` : `all ${count(concepts)}`] as [string, string]] : []),
          ]}
          onChange={(value) => setQuery({ map: value })}
        />
        <Choice label="Shade" value={shade} options={worded(SHADES)} onChange={(value) => setQuery({ shade: value })} />
      </div>
      <HeatMap
        label="Concepts across, classes down"
        rows={names}
        columns={columns.length}
        least={columns.length > 120 ? 7 : 11}
        height={rows.length > 100 ? 7 : rows.length > 60 ? 11 : rows.length > 24 ? 14 : 22}
        value={value}
        said={said}
        open={({ column }) => conceptLink(columns[column]!)}
        start={start}
      />
    </section>
  );
}
