import json
import pandas as pd

with open("/tmp/events.jsonl", "w") as file:
    for number in range(1000):
        event = {"id": number, "kind": "click" if number % 4 else "buy", "place": {"x": number % 7}}
        file.write(json.dumps(event) + "\n")
events = pd.read_json("/tmp/events.jsonl", lines=True)
places = pd.json_normalize(events["place"].tolist())["x"]
result = {"kinds": events["kind"].value_counts(), "places": places.value_counts().sort_index().tolist()}
