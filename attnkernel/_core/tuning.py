"""Sizes from which one way to evaluate a sum is faster than another, and sizes of blocks.

None changes a result beyond rounding. Figures are of a CPU with 2 cores, float32.
"""

# Dense below it: 4 MB of scores.
MAX_DENSE_PAIRS = 2**20

# Fourier above it, by the number of dimensions: there it beats streaming.
MIN_FOURIER_PAIRS = {1: 2**22, 2: 2**23, 3: 2**30}

# Pairs of all members of a batch that are evaluated at once: 64 MB of scores.
MAX_BATCH_PAIRS = 2**24

# Streaming takes one member of a batch at a time from here on: it then has blocks enough.
MIN_PAIRS_OF_SINGLE_MEMBER = 2**20

# Rows of a block of queries or of keys. T = 4096, 8 heads x 64, no mask: 238 ms in blocks of 1024,
# 269 ms of 512, 348 ms of 256.
MAX_BLOCK_ROWS = 1024

# The same for a prior with a table of blocks, where smaller blocks let it skip more of them.
MAX_BLOCK_ROWS_TABULATED = 512
