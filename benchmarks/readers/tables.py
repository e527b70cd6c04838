"""What the readers of Arrow tables count."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow


def counted(table: pyarrow.Table) -> tuple[int, int]:
    """The number of rows, and the bytes of the column `value`: the readers of other clients count those of values, too.

    The bytes include the offsets of the values, 4 for each. `table.nbytes` would add the other seven columns, which
    takes 17 µs instead of 3 for a table of 500 rows.
    """
    return table.num_rows, table["value"].nbytes
