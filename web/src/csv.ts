// Comma-separated values as htaf/_files.py writes them.

const FORMULA = /^'*[=+\-@\t\r]/; // what a spreadsheet would run, however often it was guarded
const GUARDED = /^'+[=+\-@\t\r]/;
const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$/;

export const guard = (text: string): string => (FORMULA.test(text) && !NUMBER.test(text) ? `'${text}` : text);
export const unguard = (cell: string): string => (GUARDED.test(cell) ? cell.slice(1) : cell);

const quoted = (cell: string): string => (/[",\r\n]|^\s|\s$/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell);

export const writeCsv = (rows: string[][]): string => rows.map((row) => `${row.map(quoted).join(",")}\r\n`).join("");

/** Rows of cells, separated by commas, semicolons or tabs, whichever the first line has most of. */
export function readCsv(text: string): string[][] {
  const first = text.split("\n", 1)[0]!;
  const count = (mark: string): number => first.split(mark).length - 1;
  const separator = [",", ";", "\t"].reduce((best, mark) => (count(mark) > count(best) ? mark : best));
  const rows: string[][] = [];
  let row: string[] = [];
  let at = text.startsWith("\uFEFF") ? 1 : 0;
  while (at < text.length) {
    let cell = "";
    if (text[at] === '"') {
      for (at++; ; at++) {
        const end = text.indexOf('"', at);
        if (end < 0) throw new Error("expected a closing quotation mark, got the end of the file");
        cell += text.slice(at, end);
        at = end + 1;
        if (text[at] !== '"') break;
        cell += '"';
      }
    }
    const from = at;
    while (at < text.length && text[at] !== separator && text[at] !== "\n" && text[at] !== "\r") at++;
    row.push(cell + text.slice(from, at));
    if (text[at] === separator) {
      at++;
      if (at < text.length) continue;
      row.push("");
    }
    if (text[at] === "\r" && text[at + 1] === "\n") at++;
    at++;
    rows.push(row);
    row = [];
  }
  if (row.length) rows.push(row);
  return rows.filter((cells) => cells.some((cell) => cell !== ""));
}
