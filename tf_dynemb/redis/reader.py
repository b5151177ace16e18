"""RedisReader: rows that a RedisFollower has written, as NumPy arrays."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import redis

from tf_dynemb.redis.follower import checked_prefix
from tf_dynemb.redis.layout import Names, TableLayout, by_bucket, fields_of
from tf_dynemb.redis.store import clear_errors, connect, place_of
from tf_dynemb.snapshot.files import keys_and_strings


class RedisReader:
    """Reads rows from Redis, for lookup services in Python.

    Safe in several threads. For services in other languages the page "Online learning, end to end" has
    the layout.

    Args:
        client_or_url: as of RedisFollower.
        prefix: that of the RedisFollower.

    Raises:
        TypeError: neither a client nor a URL.
        ValueError: no URL; a client that decodes what it reads; a prefix that is none.

    Example: see RedisFollower.
    """

    def __init__(
        self, client_or_url: redis.Redis | str | None = None, prefix: str = "tf_dynemb"
    ) -> None:
        self._client = connect(client_or_url)
        self._client_is_ours = not isinstance(client_or_url, redis.Redis)
        self._names = Names(checked_prefix(prefix))
        self._place = place_of(self._client)
        self._layouts: dict[str, TableLayout] = {}

    def __enter__(self) -> RedisReader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections, unless the client was given."""
        if self._client_is_ours:
            self._client.close()

    @property
    def generation(self) -> int | None:
        """The number of the generation that the rows are of; None before the first.

        Raises:
            tf_dynemb.redis.RedisError: the server cannot be asked.
            ValueError: the server refuses the user; something else is under the prefix.
        """
        with clear_errors(self._place):
            number = self._client.hget(self._names.state, "generation")
        return None if number is None else int(number)

    @property
    def tables(self) -> dict[str, TableLayout]:
        """What the tables are made of, by name. Raises as `generation`."""
        with clear_errors(self._place):
            found = self._client.hgetall(self._names.tables)
        return {name.decode(): TableLayout.parse(text) for name, text in found.items()}

    def rows(self, table: str, keys: npt.ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """The rows of some keys, all of one moment, by one trip to the server.

        A key without a row has zeros and exists False: the initial value that the trainer would give it
        is not in Redis.

        Args:
            table: its name.
            keys: integers (n,); or strings, of a table with key_dtype="string".

        Returns:
            values (n, dim) of the dtype that the publisher has published, and exists (n,), bool.

        Raises:
            TypeError: keys that are neither integers nor strings.
            tf_dynemb.redis.RedisError: the server cannot be asked.
            ValueError: there is no such table; keys of another shape; the server refuses the user;
                something else is under the prefix.
        """
        layout = self._layouts.get(table)
        if layout is None:
            layout = self._layouts[table] = self._known(table, self.tables)
        while True:
            keys_now, _ = keys_and_strings(keys, layout.key_dtype)
            fields = np.array(fields_of(keys_now), object)
            buckets = list(by_bucket(keys_now, layout.buckets))
            with clear_errors(self._place), self._client.pipeline(transaction=True) as pipe:
                pipe.hget(self._names.tables, table)
                for bucket, positions in buckets:
                    pipe.hmget(self._names.rows(table, bucket), fields[positions].tolist())
                text, *found = pipe.execute()
            now = None if text is None else TableLayout.parse(text)
            if now == layout:
                break
            # Another full copy has come; what is known of the table is asked with the rows.
            self._layouts.pop(table, None)
            layout = self._known(table, {} if now is None else {table: now})
            self._layouts[table] = layout
        rows = [b""] * len(fields)
        for (_, positions), of_bucket in zip(buckets, found, strict=True):
            for position, row in zip(positions.tolist(), of_bucket, strict=True):
                rows[position] = row or b""
        for key, row in zip(keys_now.tolist(), rows, strict=True):
            if len(row) not in (0, layout.row_bytes):
                raise ValueError(
                    f"table: got {len(row)} bytes as the row of {key} in {table!r}, want "
                    f"{layout.row_bytes}; something else than a RedisFollower has written it"
                )
        exists = np.fromiter(map(bool, rows), bool, len(rows))
        joined = b"".join(row or bytes(layout.row_bytes) for row in rows)
        return np.frombuffer(bytearray(joined), layout.numpy_dtype).reshape(-1, layout.dim), exists

    def _known(self, table: str, layouts: dict[str, TableLayout]) -> TableLayout:
        if table not in layouts:
            raise ValueError(
                f"table: got {table!r}, {self._place} has {sorted(self.tables)} under "
                f"{self._names.prefix!r}"
            )
        return layouts[table]
