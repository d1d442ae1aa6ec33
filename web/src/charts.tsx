import type { JSX } from "preact";
import { count } from "./words.ts";

const WIDTH = 640;
const HEIGHT = 220;
const BOTTOM = 30;

/** Images by margin: the bars left of the line are those that lack the concept. */
export function Margins({ counts, label }: { counts: number[]; label: string }): JSX.Element {
  const [most, bar, middle] = [Math.max(1, ...counts), WIDTH / counts.length, counts.length / 2];
  const height = HEIGHT - BOTTOM - 12;
  return (
    <figure class="chart margins">
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label={label}>
        {counts.map((value, i) => (
          <rect key={i} class={i < middle ? "series-1" : "series-0"} x={i * bar + 1} y={12 + height * (1 - value / most)} width={bar - 2} height={(height * value) / most}>
            <title>{count(value)}</title>
          </rect>
        ))}
        <line class="threshold" x1={WIDTH / 2} x2={WIDTH / 2} y1="0" y2={12 + height} />
        {(["without it", "threshold", "with it"] as const).map((text, i) => (
          <text key={text} x={(i * WIDTH) / 2} y={HEIGHT - 8} text-anchor={(["start", "middle", "end"] as const)[i]!}>
            {text}
          </text>
        ))}
      </svg>
    </figure>
  );
}
