import pandas as pd

days = pd.Series(1, index=pd.date_range("2024-01-01", "2024-12-31"))
months = days.resample("MS").sum()
result = {"days": months.to_list(), "weeks": len(days.resample("W").sum()), "first": months.index[1].isoformat()}
