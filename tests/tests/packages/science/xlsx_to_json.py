import pandas as pd

born = pd.to_datetime(["1915-12-10", "1906-12-09"])
people = pd.DataFrame({"name": ["Ada", "Grace"], "born": born, "papers": [1, 40]})
with pd.ExcelWriter("/tmp/people.xlsx") as book:
    people.to_excel(book, sheet_name="people", index=False)
    people[["papers"]].sum().to_frame("sum").to_excel(book, sheet_name="sums")
sheets = pd.read_excel("/tmp/people.xlsx", sheet_name=None)
result = {"sheets": list(sheets), "people": sheets["people"], "sum": int(sheets["sums"]["sum"][0])}
