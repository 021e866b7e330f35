import pandas as pd
import statsmodels.formula.api as smf

data = pd.DataFrame({"x": [1, 2, 3, 4, 5], "y": [2, 4, 5, 4, 5]})
fit = smf.ols("y ~ x", data).fit()
result = {"parameters": fit.params, "errors": fit.bse, "r_squared": fit.rsquared, "p": fit.pvalues["x"]}
