import assert from "node:assert/strict";
import { test } from "node:test";
import { format, parse } from "../src/route.ts";
import { clip, item, plain, setItem, shown } from "../src/words.ts";

const HOSTILE = ["a,b", 'say "no"', "two\nlines", "\r\n", " space ", "=1+1", "'=1", "''-", "\u202Ertl", "", "a;b\tc", "@x", "😀"];

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
