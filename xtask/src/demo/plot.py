import numpy as np
import pandas as pd
import matplotlib.pyplot as plt

hours = pd.date_range("2026-06-01", periods=24 * 28, freq="h")
rng = np.random.default_rng(7)
day = np.exp(-((hours.hour - 13.0) ** 2) / 18)
calls = pd.DataFrame(
    {name: rng.poisson(scale * (0.15 + day) * np.where(hours.dayofweek < 5, 1, 0.35)) for name, scale in
     {"read_file": 90, "run_python": 55, "http_fetch": 30, "write_file": 20}.items()}, index=hours)
figure, (weeks, clock) = plt.subplots(1, 2, figsize=(11, 4), width_ratios=(3, 2), layout="constrained")
calls.resample("6h").sum().plot.area(ax=weeks, colormap="viridis", alpha=0.85, lw=0, title="Calls in four weeks")
table = calls.sum(axis=1).groupby([hours.dayofweek, hours.hour]).mean().unstack()
clock.imshow(table, cmap="magma", aspect="auto")
clock.set_yticks(range(7), ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"])
clock.set(title="Calls an hour", xlabel="hour of the day", xticks=range(0, 24, 6))
calls.sum()
