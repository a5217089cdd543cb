"""Tables of plain text: columns as wide as their widest cell, two spaces apart."""

from collections.abc import Callable, Sequence


def align_columns(
    rows: Sequence[Sequence[str]], pad: Callable[[str, int], str] = str.ljust
) -> list[str]:
    """Returns a line for each row, its cells padded to the width of their column.

    `pad`: `str.ljust` or `str.rjust`. Lines do not end in spaces.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(pad, row, widths)).rstrip() for row in rows]
