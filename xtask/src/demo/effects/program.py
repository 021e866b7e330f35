# Puts a folder of notes in order. It renames and deletes by itself, and reads and edits by calls of other tools. All of
# them work on one copy of the folder: each sees what the others have changed, and nobody else does.
import os

folder = "/workspace/notes"
archive = f"{folder}/archive"
names = [entry["relative"] for entry in tools.list_directory(path=folder)["entries"]]
texts = [tools.read_file(path=f"{folder}/{name}")["content"] for name in names]
os.mkdir(archive)
final = []
for name, text in zip(names, texts):
    path = f"{folder}/{name}"
    if name.endswith(".tmp"):
        os.remove(path)
    elif "Status: draft" in text:
        tools.edit_file(path=path, old_text="Status: draft", new_text="Status: final")
        final.append(name)
    else:
        os.rename(path, f"{archive}/{name}")
archived = [tools.hash_file(path=f"{archive}/{name}")["bytes"] for name in sorted(os.listdir(archive))]
tools.write_file(path=f"{folder}/index.md", content="\n".join(final) + "\n")
drafts = tools.search_text(path=folder, pattern="Status: draft")["matches"]
index = tools.read_file(path=f"{folder}/index.md")["content"]
result = {"archived": len(archived), "drafts": len(drafts), "index": index.splitlines()}
