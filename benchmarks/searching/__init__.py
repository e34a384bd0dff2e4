"""The benchmark of searches, in parts. One BLAS thread: the matrices are small, and on busy cores two threads
take three times the CPU of one. NumPy reads the number once, as it is imported."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
