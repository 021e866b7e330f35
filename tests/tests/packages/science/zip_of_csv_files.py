import zipfile
import pandas as pd

with zipfile.ZipFile("/tmp/months.zip", "w", zipfile.ZIP_DEFLATED) as archive:
    for month in range(1, 4):
        rows = "".join(f"{day},{day * month}\n" for day in range(1, 29))
        archive.writestr(f"2026-{month:02}.csv", "day,sum\n" + rows)
with zipfile.ZipFile("/tmp/months.zip") as archive:
    parts = {name: pd.read_csv(archive.open(name)) for name in archive.namelist()}
result = pd.concat(parts, names=["file"]).groupby("file")["sum"].agg(["count", "sum"])
