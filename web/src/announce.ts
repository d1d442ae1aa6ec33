import { Store } from "./store.ts";

/** What a screen reader should say next. */
export const said = new Store("");

export const announce = (text: string): void => said.set(text);
