import assert from "node:assert/strict";
import { test } from "node:test";
import { countWords } from "./words.js";

test("words are counted", () => {
  assert.equal(countWords("one two\n three"), 3);
  assert.equal(countWords(" "), 0);
});
