import numpy as np
from scipy import sparse
from scipy.sparse.linalg import spsolve

size = 20_000
matrix = sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(size, size), format="csc")
solution = spsolve(matrix, np.ones(size))
is_near = bool(np.abs(matrix @ solution - 1).max() < 1e-4)
result = {"stored": matrix.nnz, "first": solution[0], "middle": solution.max(), "rest": is_near}
