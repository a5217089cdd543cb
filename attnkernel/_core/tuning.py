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

# Blockwise takes one member of a batch at a time from here on. Gradient, one at a time against all:
# 32 members of 256² pairs 27 against 26 ms, 16 of 512² 33 against 63, 8 of 1024² 64 against 141.
MIN_PAIRS_OF_SINGLE_MEMBER = 2**18

# Rows of a block of queries or of keys. T = 4096, 8 heads x 64, no mask: 238 ms in blocks of 1024,
# 269 ms of 512, 348 ms of 256.
MAX_BLOCK_ROWS = 1024

# The same for a prior that excludes blocks: the smaller they are, the more are skipped. A mask by a
# function at T = 4096, 8 heads x 64, in blocks of 256, 512, 1024: a window of 256 keys 60, 75,
# 118 ms; causal 292, 185, 199 ms. CPU time of causal attention in blocks of 512 and 1024, and with
# its gradient: T = 1024 24 and 29 ms, 81 and 94; T = 2048 73 and 84, 263 and 286; T = 4096 253 and
# 265, 930 and 976; without gradient T = 8192 911 and 904, T = 16384 3543 and 3399.
MAX_BLOCK_ROWS_EXCLUDED = 512
MAX_KEYS_OF_SMALL_BLOCKS = 4096  # of causal masks and windows; with a table blocks stay small

# Keys that Blockwise sums at once, without a prior and for kernels that are not light. T = 2048,
# 8 heads x 32, gradient: CPU time to compile 0.8 s, in blocks of keys 1.9 s; to run 131 and 140 ms.
MAX_KEYS_OF_SINGLE_BLOCK = 4096
