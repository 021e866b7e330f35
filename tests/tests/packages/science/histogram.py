import matplotlib.pyplot as plt
import numpy as np

values = np.concatenate([np.full(10, 0.5), np.full(30, 1.5), np.full(20, 2.5)])
counts, edges, _ = plt.hist(values, bins=[0, 1, 2, 3], color="#1b9e77")
figure = plt.gcf()
figure.set_size_inches(3, 2)
figure.canvas.draw()
pixels = np.asarray(figure.canvas.buffer_rgba())[:, :, :3]
share = (pixels == (27, 158, 119)).all(axis=2).mean()
result = {"counts": counts, "edges": edges, "is_drawn": bool(0.2 < share < 0.8)}
