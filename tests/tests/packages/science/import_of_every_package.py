"""The modules that cannot be imported: docs/languages/python.md says why."""

import importlib

PACKAGES = """PIL attr attrs bs4 charset_normalizer cloudpickle contourpy cycler dateutil defusedxml et_xmlfile fontTools
formulaic html5lib interface_meta isympy jinja2 joblib kiwisolver lxml markupsafe matplotlib more_itertools mpl_toolkits mpmath
narwhals networkx numpy openpyxl packaging pandas patsy pylab pyparsing pypdf regex reportlab scipy seaborn six sklearn soupsieve
statsmodels sympy tabulate threadpoolctl tlz tomli_w toolz tqdm typing_extensions tzdata webencodings wrapt xlrd xlsxwriter
xmltodict yaml"""
PARTS = {
    "PIL": "Image ImageCms ImageDraw ImageFilter ImageFont ImageGrab ImageQt ImageShow ImageTk",
    "lxml": "builder etree html objectify",
    "matplotlib": "animation backends.backend_pdf backends.backend_svg backends.backend_tkagg backends.backend_webagg pyplot",
    "mpl_toolkits": "axes_grid1 mplot3d",
    "numpy": "ctypeslib f2py testing",
    "pandas": "plotting testing",
    "reportlab": "pdfgen.canvas platypus",
    "scipy": "cluster constants datasets fft fftpack integrate interpolate io linalg ndimage odr optimize signal sparse spatial "
    "special stats",
    "sklearn": "calibration cluster compose covariance cross_decomposition datasets decomposition discriminant_analysis dummy "
    "ensemble experimental feature_extraction feature_selection gaussian_process impute inspection isotonic "
    "kernel_approximation kernel_ridge linear_model manifold metrics mixture model_selection multiclass multioutput "
    "naive_bayes neighbors neural_network pipeline preprocessing random_projection semi_supervised svm tree",
    "statsmodels": "api formula.api tsa.api",
    # Of the standard library, what programs import.
    "": "asyncio bz2 concurrent.futures csv ctypes curses dbm decimal email fcntl fractions gzip hashlib html.parser "
    "http.client json lzma multiprocessing pickle pwd readline resource select socket sqlite3 ssl statistics subprocess "
    "tarfile termios threading tkinter tomllib urllib.request uuid venv xml.etree.ElementTree zipfile zlib zoneinfo "
    "compression.zstd",
}
names = PACKAGES.split() + [f"{package}.{part}".lstrip(".") for package, parts in PARTS.items() for part in parts.split()]
failed = {}
for name in names:
    try:
        importlib.import_module(name)
    except Exception as error:
        failed[name] = f"{type(error).__name__}: {error}"
result = {"imported": len(names) - len(failed), "failed": sorted(failed)}
print(*failed.values(), sep="\n")
