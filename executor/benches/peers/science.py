"""The programs of science Python that `cargo xtask bench code` times. Peers without pandas run only the first."""

PYTHON = "1 + 1"
PANDAS = "import pandas\nprint(pandas.DataFrame({'a': [2]}).a.sum())"
PLOT = """import io
import numpy, pandas
import matplotlib
matplotlib.use("agg")
import matplotlib.pyplot as plot
numbers = numpy.random.default_rng(1)
rows = 100_000
table = pandas.DataFrame({"day": pandas.date_range("2026-01-01", periods=rows, freq="min"),
                          "shop": numbers.choice(list("abcde"), rows), "sum": numbers.normal(50, 9, rows).round(2)})
text = io.StringIO(table.to_csv(index=False))
read = pandas.read_csv(text, parse_dates=["day"])
read.groupby("shop")["sum"].mean().plot.bar()
picture = io.BytesIO()
plot.savefig(picture, format="png")
plot.close("all")
print("2 PNG" if picture.getvalue().startswith(b"\\x89PNG") else "none")
"""
CODE = {"python": PYTHON, "pandas": PANDAS, "plot": PLOT}
EXPECTED = {"pandas": "2", "plot": "2 PNG"}
