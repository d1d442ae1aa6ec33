import assert from "node:assert/strict";
import { test } from "node:test";
import { guard, readCsv, unguard, writeCsv } from "../src/csv.ts";
import { format, parse } from "../src/route.ts";
import { clip, item, plain, setItem, shown } from "../src/words.ts";

const HOSTILE = ["a,b", 'say "no"', "two\nlines", "\r\n", " space ", "=1+1", "'=1", "''-", "\u202Ertl", "", "a;b\tc", "@x", "😀"];

test("csv is read as it was written", () => {
  const rows = [["concept", "name"], ...HOSTILE.map((text, i) => [String(i), guard(text)])];
  const back = readCsv(writeCsv(rows));
  assert.deepEqual(back, rows);
  assert.deepEqual(back.slice(1).map(([, cell]) => unguard(cell!)), HOSTILE);
});

test("no cell is a formula", () => {
  for (const text of ["=1", "+a", "-1+2", "@a", "\ta", "\ra", "'=1", "'-1"]) assert.match(guard(text), /^'/);
  for (const text of ["a=1", "'tis", "0", "-1", "+.5", "-1e-3"]) assert.equal(guard(text), text);
});

test("csv of spreadsheets: semicolons, BOM, no last line end, empty lines", () => {
  assert.deepEqual(readCsv('\uFEFFconcept;name\r\n\r\n0;"a;b"\r\n1;'), [["concept", "name"], ["0", "a;b"], ["1", ""]]);
  assert.throws(() => readCsv('a,"b'), /closing quotation mark/);
});

test("an address brings back what it was made from", () => {
  for (const id of [...HOSTILE.filter(Boolean), "a/b#c?d=e%20'f'&g", "ü", "."]) {
    for (const query of [{}, { q: "a&b=c #d", page: "2" }]) {
      assert.deepEqual(parse(format("image", id, query)), { view: "image", id, query });
    }
  }
  assert.deepEqual(parse(""), { view: "overview", id: null, query: {} });
  assert.equal(parse("#/image/%zz").id, "%zz");
});

test("texts are clipped between characters and stripped of what turns the line", () => {
  assert.equal(clip("abc", 3), "abc");
  assert.equal(clip("abcd", 3), "abc…");
  assert.equal(clip("ab😀cd", 3), "ab…");
  assert.equal(plain("a\n\u202Eb\u0000"), "a b");
  assert.equal(shown("gnp.\u202Eexe \u200Eok"), "gnp.\\u202eexe \u200Eok");
  for (const mark of "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069") {
    assert.equal(shown(`a${mark}b`), `a\\u${mark.charCodeAt(0).toString(16)}b`);
  }
  assert.equal(plain("\u202E"), "(blank)");
});

test("our words about images are said of what the page has", () => {
  assert.equal(item("Images of an image"), "Images of an image");
  setItem("text");
  assert.equal(item("Images, an image's share, An image, an average image"), "Texts, a text's share, A text, an average text");
  setItem("image");
});
