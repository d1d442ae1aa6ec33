import type { JSX } from "preact";
import type { Explorer } from "./explorer.ts";
import { useFailure, useNeeds, type Need } from "./needs.ts";

/** What stands where the data are still on their way. */
export function Waiting(): JSX.Element {
  const failure = useFailure();
  if (failure) {
    return (
      <p role="alert" class="warn">
        {failure}. Copy the whole folder that <code>htaf explore</code> wrote, with <code>data/</code> inside, or write it again.
      </p>
    );
  }
  return (
    <p class="empty waiting" role="status">
      Reading the data…
    </p>
  );
}

/** Its content, as soon as what it needs is there. */
export function Needs({ explorer, of, children }: { explorer: Explorer; of: Need[]; children: () => JSX.Element | null }): JSX.Element | null {
  return useNeeds(explorer, of) ? children() : <Waiting />;
}
