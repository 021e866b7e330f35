// A typed tool that counts the words of a text.
import { log } from "a2g:tool/host@0.2.0";
import { countWords } from "./words.js";

const schema = {
  type: "object",
  properties: { text: { type: "string", description: "The text whose words are counted." } },
  required: ["text"],
  additionalProperties: false,
};

export function describe() {
  return {
    name: "template_tool",
    version: "0.1.0",
    description: "Counts the words of a text.",
    argumentsSchema: JSON.stringify(schema),
  };
}

export function invoke(argumentsJson) {
  const { text } = JSON.parse(argumentsJson);
  const words = countWords(text);
  log("info", `counted ${words} words`);
  // An error has to have all three members.
  if (words === 0) throw { code: "no_words", message: "`text` has no words", detail: undefined };
  return JSON.stringify({ words });
}
