import type { JSX } from "preact";
import type { Series } from "./types.ts";
import { count, percent, plain } from "./words.ts";

const WIDTH = 640;
const HEIGHT = 220;
const LEFT = 54;
const BOTTOM = 30;

/** Bars over ten equal bins of a share, one colour a series; heights are shares of the series. */
export function Histogram({ series, label }: { series: Series[]; label: string }): JSX.Element {
  const shares = series.map(({ counts }) => {
    const sum = counts.reduce((a, b) => a + b, 0);
    return counts.map((value) => (sum ? value / sum : 0));
  });
  const top = niceTop(Math.max(0.01, ...shares.flat()));
  const y = (share: number): number => 12 + (HEIGHT - BOTTOM - 12) * (1 - share / top);
  const bin = (WIDTH - LEFT) / 10;
  const bar = (bin - 8) / Math.max(1, series.length);
  return (
    <figure class="chart">
      {series.length > 1 && (
        <ul class="legend">
          {series.map(({ name }, index) => (
            <li key={index}>
              <span class={`key series-${index % 3}`} />
              <bdi>{plain(name)}</bdi>
            </li>
          ))}
        </ul>
      )}
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label={label}>
        {[0, top / 2, top].map((share) => (
          <g key={share}>
            <line x1={LEFT} x2={WIDTH} y1={y(share)} y2={y(share)} />
            <text x={LEFT - 8} y={y(share) + 4} text-anchor="end">
              {percent(share, top < 0.04 ? 1 : 0)}
            </text>
          </g>
        ))}
        {shares.map((values, index) =>
          values.map((share, i) => (
            <rect
              key={`${index}-${i}`}
              class={`series-${index % 3}`}
              x={LEFT + i * bin + 4 + index * bar}
              y={y(share)}
              width={Math.max(1, bar - 1)}
              height={y(0) - y(share)}
              rx="1.5"
            />
          )),
        )}
        {[0, 0.2, 0.4, 0.6, 0.8, 1].map((share) => (
          <text key={share} x={LEFT + share * (WIDTH - LEFT)} y={HEIGHT - 8} text-anchor={share === 1 ? "end" : share === 0 ? "start" : "middle"}>
            {percent(share)}
          </text>
        ))}
      </svg>
      <details>
        <summary>The numbers</summary>
        <div class="scrolls" tabIndex={0} role="region" aria-label="Numbers of the histogram">
          <table>
            <thead>
              <tr>
                <th scope="col">Share of the class</th>
                {series.map(({ name }, index) => (
                  <th key={index} scope="col" class="num">
                    <bdi>{plain(name)}</bdi>
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {Array.from({ length: 10 }, (_, i) => (
                <tr key={i}>
                  <th scope="row">
                    {10 * i}–{10 * i + 10}%
                  </th>
                  {series.map(({ counts }, index) => (
                    <td key={index} class="num">
                      {count(counts[i] ?? 0)}
                    </td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      </details>
    </figure>
  );
}

function niceTop(most: number): number {
  for (const top of [0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8]) if (most <= top) return top;
  return 1;
}

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

/** Ten small bars: where the images of one class have their concepts. */
export function Spark({ counts, label }: { counts: number[]; label: string }): JSX.Element {
  const most = Math.max(1, ...counts);
  return (
    <svg class="spark" viewBox="0 0 80 24" role="img" aria-label={label}>
      {counts.map((value, i) => (
        <rect key={i} class="series-0" x={i * 8} y={24 - (23 * value) / most} width="6.5" height={(23 * value) / most} rx="1" />
      ))}
    </svg>
  );
}
