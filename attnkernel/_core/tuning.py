"""Sizes from which one way to evaluate a sum is faster than another, and sizes of blocks.

None changes a result beyond rounding. Figures are of a CPU with 2 cores, float32.
"""

# Dense up to here: 4 MB of scores. Gradient of n² pairs in one dimension, Dense against Blockwise:
# n = 1024 0.9 against 1.3 ms, 2048 14 against 8 ms, 4096 86 against 29 ms.
MAX_DENSE_PAIRS = 2**20

# Fourier above here, by the number of dimensions: it is faster than Blockwise from about there on.
# Local linear fits, leave-one-out with its gradient in float64, Fourier and Blockwise: 17 and 31 ms
# for 1200 rows, 17 and 72 ms for 2400, 20 and 200 ms for 4800; CPU time to compile 13 and 7 s.
MIN_FOURIER_PAIRS = {1: 2**22, 2: 2**23, 3: 2**30}

# Pairs of all members of a batch that are evaluated at once: 64 MB of scores. Gradient of 2²⁴ pairs
# of 1024 members: 470 ms, in chunks of 2²² pairs 960 ms. 2²⁶ pairs of 256 members: 552 ms, at once
# 688 ms.
MAX_BATCH_PAIRS = 2**24

# Rows of a block of queries or of keys. T = 4096, 8 heads x 64, no mask: 238 ms in blocks of 1024,
# 269 ms of 512, 348 ms of 256.
MAX_BLOCK_ROWS = 1024
