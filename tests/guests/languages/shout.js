// A typed tool in JavaScript, made a component by componentize-js.
import { log } from "a2g:tool/host@0.1.0";

const schema = {
  type: "object",
  properties: { text: { type: "string" } },
  required: ["text"],
  additionalProperties: false,
};

export function describe() {
  return {
    name: "shout",
    version: "1.0.0",
    description: "Returns a text in capital letters.",
    argumentsSchema: JSON.stringify(schema),
  };
}

export function invoke(argumentsJson) {
  const { text } = JSON.parse(argumentsJson);
  log("info", "shouting");
  if (text === "") throw { code: "empty", message: "`text` is empty", detail: undefined };
  return JSON.stringify({ text: text.toUpperCase() });
}
