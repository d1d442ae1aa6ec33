// Strings of the data: always text, never markup, and isolated, so that none reorders what stands around it.
import type { JSX } from "preact";
import { clip, count, shown } from "./words.ts";

export function Text({ value, limit = 80 }: { value: string; limit?: number }): JSX.Element {
  const parts = (value.trim() ? clip(shown(value), limit) : "(blank)").split(/(?<=[_./\\-])(?=[^_./\\\s-])/);
  return <bdi>{parts.map((part, index) => (index > 0 ? [<wbr key={index} />, part] : part))}</bdi>; // where names of files may break
}

/** The whole of a text that is too long to stand where it is named. */
export function Rest({ value, limit = 80 }: { value: string; limit?: number }): JSX.Element | null {
  if (value.length <= limit) return null;
  return (
    <details class="rest">
      <summary>All {count(value.length)} characters</summary>
      <p>
        <bdi>{shown(value)}</bdi>
      </p>
    </details>
  );
}

export function LongText({ value, limit = 400 }: { value: string; limit?: number }): JSX.Element {
  return (
    <>
      <Text value={value} limit={limit} />
      <Rest value={value} limit={limit} />
    </>
  );
}
