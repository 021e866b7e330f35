// Arguments: the source, the folder of the WIT, the world, the folder of componentize-js, and the component to write.
import { spawnSync } from "node:child_process";
import { readdirSync } from "node:fs";
import { writeFile } from "node:fs/promises";
import { pathToFileURL } from "node:url";

const [sourcePath, witPath, worldName, library, component] = process.argv.slice(2);
const { componentize } = await import(pathToFileURL(`${library}/src/componentize.js`));
// Without these features the component does not import HTTP, which a run without network lacks.
const disableFeatures = ["http", "fetch-event"];
try {
  const made = await componentize({ sourcePath, witPath, worldName, disableFeatures });
  await writeFile(component, made.component);
} catch (error) {
  console.error(error.message ?? error);
  // componentize-js names neither the file nor the line of a syntax error.
  for (const file of readdirSync(".").filter((name) => name.endsWith(".js"))) {
    const { status, stderr } = spawnSync(process.execPath, ["--check", file], { encoding: "utf8" });
    const [place, ...lines] = stderr.split("\n");
    const reason = lines.find((line) => line.startsWith("SyntaxError"));
    if (status !== 0 && reason) console.error(`${lines.slice(0, 2).join("\n")}\n${place.split("/").at(-1)}: ${reason}`);
  }
  process.exit(1);
}
