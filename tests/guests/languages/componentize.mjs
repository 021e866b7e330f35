// Arguments: the source, the folder of the WIT, the component to write, and the folder of componentize-js.
import { writeFile } from "node:fs/promises";
import { pathToFileURL } from "node:url";

const [sourcePath, witPath, component, library] = process.argv.slice(2);
const { componentize } = await import(pathToFileURL(`${library}/src/componentize.js`));
// Without them, the component imports no HTTP, which a run without the network does not have.
const disableFeatures = ["http", "fetch-event"];
const made = await componentize({ sourcePath, witPath, worldName: "tool", disableFeatures });
await writeFile(component, made.component);
