# Each call of a tool is an intent of its own, with its own verdict, limits and report.
folder = "/workspace/notes"
entries = tools.list_directory(path=folder)["entries"]
notes = tools.parallel([("read_file", {"path": entry["path"]}) for entry in entries])
try:
    tools.read_file(path="/etc/passwd")
    refused = "nothing"
except tools.ToolError as error:
    refused = error.code
page = tools.http_fetch(url="http://ADDRESS/weather")
lines = [note["content"].strip() for note in notes] + [page["body"].strip(), f"/etc/passwd: {refused}"]
tools.write_file(path=f"{folder}/summary.txt", content="\n".join(lines) + "\n")
result = lines
