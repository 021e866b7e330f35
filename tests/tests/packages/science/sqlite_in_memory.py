import sqlite3
import pandas as pd

base = sqlite3.connect(":memory:")
pd.DataFrame({"town": ["Bern", "Basel", "Bern"], "sum": [1.5, 2.0, 3.0]}).to_sql("sales", base, index=False)
base.execute("UPDATE sales SET sum = sum * 2 WHERE town = ?", ["Basel"])
result = pd.read_sql("SELECT town, SUM(sum) AS sum FROM sales GROUP BY town ORDER BY town", base)
