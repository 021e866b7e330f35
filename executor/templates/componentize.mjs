// Arguments: the source, the folder of the WIT, the world, the folder of componentize-js, and the component to write.
import { writeFile } from "node:fs/promises";
import { pathToFileURL } from "node:url";

const [sourcePath, witPath, worldName, library, component] = process.argv.slice(2);
const { componentize } = await import(pathToFileURL(`${library}/src/componentize.js`));
// Without them, the component imports no HTTP, which a run without the network does not have.
const disableFeatures = ["http", "fetch-event"];
const made = await componentize({ sourcePath, witPath, worldName, disableFeatures });
await writeFile(component, made.component);
