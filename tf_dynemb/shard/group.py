"""Group: processes that do something together, such as saving their parts of tables, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import tensorflow as tf

from tf_dynemb.base.table import Table


class OneProcess:
    """Stands for the AllToAllExchange of tables that are not spread."""

    processes = 1
    index = 0

    @staticmethod
    def gather_texts(text: str) -> list[str]:
        """As AllToAllExchange.gather_texts."""
        return [text]


class Group:
    """The processes that tables are spread over; often this one alone.

    Args:
        tables: all spread over the same processes, or none of them.

    Raises:
        ValueError: some are spread and some are not.
    """

    def __init__(self, tables: Iterable[Table]) -> None:
        tables = list(tables)
        exchanges = {table.exchange for table in tables}
        if len(exchanges) > 1:
            alone = [table.name for table in tables if table.exchange is None]
            raise ValueError(
                f"tables: got {alone} of this process alone beside others that are spread over "
                "processes; make all in the strategy's scope, or name those of each kind in a call of "
                "their own"
            )
        self._exchange = exchanges.pop() or OneProcess()
        self.processes = self._exchange.processes
        self.index = self._exchange.index

    def run(self, work: Callable[[], str]) -> list[str]:
        """Does this process' part of the work and waits for the others.

        Returns:
            What work() gave in each process.

        Raises:
            tf.errors.AbortedError: it failed in another process; says in which and why. Where it failed,
                that error itself is raised.
            tf.errors.OpError: of the exchange, if a process has died or never comes.
        """
        try:
            answer = work()
        except Exception as error:
            self._exchange.gather_texts(f"!{type(error).__name__}: {error}")
            raise
        answers = self._exchange.gather_texts(f"={answer}")
        failed = [f"process {n}: {a[1:]}" for n, a in enumerate(answers) if a.startswith("!")]
        if failed:
            raise tf.errors.AbortedError(None, None, "; ".join(failed))
        return [answer[1:] for answer in answers]
