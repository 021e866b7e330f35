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

function run({ text }) {
  const words = countWords(text);
  log("info", `counted ${words} words`);
  if (words === 0) throw { code: "no_words", message: "`text` has no words" };
  return { words };
}

export function invoke(argumentsJson) {
  try {
    return JSON.stringify(run(JSON.parse(argumentsJson))) ?? "null";
  } catch (error) {
    // The contract knows only errors of this form. Any other exception would end the run without its message.
    const { code = "exception", message = String(error), detail } = Object(error);
    if (error instanceof Error) log("error", `${error}\n${error.stack}`);
    throw { code: String(code), message: String(message), detail: JSON.stringify(detail) };
  }
}
