import pandas as pd

orders = pd.DataFrame({"customer": [1, 2, 1, 3, 9], "month": ["jan"] * 2 + ["feb"] * 3, "sum": [10, 20, 30, 40, 50]})
customers = pd.DataFrame({"customer": [1, 2, 3], "town": ["Bern", "Bern", "Basel"]})
joined = orders.merge(customers, on="customer", how="left", indicator=True)
table = joined.pivot_table(index="town", columns="month", values="sum", aggfunc="sum", fill_value=0)
result = {"table": table, "without": joined.query("_merge == 'left_only'")["customer"].tolist()}
