"""Sizes from which one way to evaluate a sum is faster than another, and sizes of blocks.

None changes a result beyond rounding. Figures are of a CPU with 2 cores, float32.
"""

# Dense up to here: 4 MB of scores. Gradient of n² pairs in one dimension, Dense against Blockwise:
# n = 1024 0.9 against 1.3 ms, 2048 14 against 8 ms, 4096 86 against 29 ms.
MAX_DENSE_PAIRS = 2**20

# Rows of a block of queries or of keys. T = 4096, 8 heads x 64, no mask: 238 ms in blocks of 1024,
# 269 ms of 512, 348 ms of 256.
MAX_BLOCK_ROWS = 1024
