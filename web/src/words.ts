// Texts and numbers as they are shown.

const CONTROL = /[\p{Cc}\u2028\u2029]+/gu;
const BIDI = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

/** At most `limit` UTF-16 units and an ellipsis; no half of a pair. */
export function clip(text: string, limit: number): string {
  if (text.length <= limit) return text;
  return `${text.slice(0, limit).toWellFormed().replace(/\uFFFD$/, "").trimEnd()}…`;
}

const TURNING = /[\u202a-\u202e\u2066-\u2069]/g;

/** With the characters that turn the direction of others shown as \uXXXX: a name must not read as another one. */
export const shown = (text: string): string => text.replace(TURNING, (mark) => `\\u${mark.charCodeAt(0).toString(16)}`);

/** For attributes, options and the title, which cannot isolate: one line without marks that turn the direction. */
export const plain = (text: string, limit = 80): string => clip(text.replace(CONTROL, " ").replace(BIDI, "").trim(), limit) || "(blank)";

let kind = "image";

/** What the rows of the data are, in a word: "image", "text", "link" or "row". */
export const setItem = (word: string): void => void (kind = word);

/** Our own words about images, said of what this page has: "an image" is "a text" where it has texts. */
export const item = (words: string): string =>
  kind === "image" ? words : words.replace(/\b(?:([Aa])n )?([Ii])mage/g, (_, article, first) => `${article ? `${article} ` : ""}${first === "I" ? kind[0]!.toUpperCase() : kind[0]!}${kind.slice(1)}`);

export const count = (value: number): string => value.toLocaleString("en-US");

export const plural = (number: number, word: string, words = `${word}s`): string => `${count(number)} ${number === 1 ? word : words}`;

export const percent = (value: number | null, digits = 0): string =>
  value === null || Number.isNaN(value) ? "–" : `${(100 * value).toFixed(digits)}%`;

export const decimal = (value: number | null, digits = 2): string =>
  value === null || Number.isNaN(value) ? "–" : value.toFixed(digits).replace("-", "\u2212");

export const signed = (value: number, digits = 2): string => {
  const text = decimal(value, digits);
  return value > 0 ? `+${text}` : text;
};
