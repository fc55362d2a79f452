"""Many rows as the driver returns them: tuples, without a name or a conversion for each column."""

from collections.abc import Iterator, Mapping
from typing import Any

import sqlalchemy as sa

_AT_ONCE = 4096


def raw_rows(
    connection: sa.Connection, query: sa.Select[Any], given: Mapping[str, Any] | None = None
) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the rows of a query, in its order, as many at once as are quick to work through."""
    with connection.execute(query, given) as result:
        cursor = result.cursor
        assert cursor is not None
        while rows := cursor.fetchmany(_AT_ONCE):
            yield list(rows)
