import pandas as pd
from zoneinfo import ZoneInfo
from datetime import datetime

texts = ["2026-03-29 00:30", "2026-03-29 01:30", "2026-10-25 00:30", "2026-10-25 01:30"]
times = pd.Series(pd.to_datetime(texts, utc=True))
berlin = times.dt.tz_convert("Europe/Berlin")
tokyo = datetime(2026, 1, 1, 12, tzinfo=ZoneInfo("America/New_York")).astimezone(ZoneInfo("Asia/Tokyo"))
result = {"berlin": [time.isoformat() for time in berlin], "tokyo": tokyo.isoformat()}
