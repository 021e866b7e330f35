import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import confusion_matrix
from sklearn.model_selection import train_test_split

rng = np.random.default_rng(5)
x = np.vstack([rng.normal(-3, 1, (200, 2)), rng.normal(3, 1, (200, 2))])
y = np.repeat(["low", "high"], 200)
train_x, test_x, train_y, test_y = train_test_split(x, y, test_size=100, random_state=1, stratify=y)
model = LogisticRegression().fit(train_x, train_y)
result = {"score": model.score(test_x, test_y), "table": confusion_matrix(test_y, model.predict(test_x))}
