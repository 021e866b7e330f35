import pandas as pd
import matplotlib.pyplot as plt
from PIL import Image

rows = [f"{shop},{month},{(month * 7 + place * 3) % 11}" for month in range(1, 13) for place, shop in enumerate("abc")]
open("/tmp/sales.csv", "w").write("\n".join(["shop,month,sum", *rows]))
sums = pd.read_csv("/tmp/sales.csv").groupby("shop")["sum"].sum()
sums.plot.bar(figsize=(6, 4), title="Sales", color=["#1b9e77", "#d95f02", "#7570b3"])
plt.savefig("/artifacts/sales.png", dpi=100)
picture = Image.open("/artifacts/sales.png").convert("RGB")
colours = {colour for _, colour in picture.getcolors(1 << 20)}
result = {"sums": sums, "bars": [colour in colours for colour in [(27, 158, 119), (217, 95, 2), (117, 112, 179)]]}
