"""Group: what fails in one process fails in all; saves of tables that share nothing are saves of one."""

import threading
import types

import pytest
import tensorflow as tf

import tf_dynemb
from tf_dynemb import snapshot
from tf_dynemb.shard.group import Group


class Threads:
    """A thread of several as a process, with what Group needs of an AllToAllExchange."""

    def __init__(self, processes, index, texts, barrier):
        self.processes, self.index = processes, index
        self._texts, self._barrier = texts, barrier

    def gather_texts(self, text):
        self._texts[self.index] = text
        self._barrier.wait()
        texts = list(self._texts)
        self._barrier.wait()
        return texts


def together(processes, work):
    """What work(index) gave or raised in each of the threads, as the group says it to them."""
    outcomes, texts = [None] * processes, [None] * processes
    barrier = threading.Barrier(processes, timeout=60)

    def run(index):
        exchange = Threads(processes, index, texts, barrier)
        table = types.SimpleNamespace(name="t", exchange=exchange)
        try:
            outcomes[index] = Group([table]).run(lambda: work(index))
        except Exception as error:
            outcomes[index] = error

    running = [threading.Thread(target=run, args=(index,)) for index in range(processes)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return outcomes


def test_all_get_what_each_gave():
    assert together(3, lambda index: f"!{index}") == [["!0", "!1", "!2"]] * 3
    assert together(1, lambda index: "") == [[""]]


def test_what_fails_in_some_fails_in_all():
    def work(index):
        if index > 0:
            raise KeyError(index)
        return ""

    first, second, third = together(3, work)
    assert isinstance(first, tf.errors.AbortedError)
    assert first.message == "process 1: KeyError: 1; process 2: KeyError: 2"
    assert isinstance(second, KeyError) and second.args == (1,)
    assert isinstance(third, KeyError) and third.args == (2,)


def test_tables_of_one_process_are_a_group_of_it_alone():
    tables = [tf_dynemb.Variable(dim=1, name=name) for name in "ab"]
    group = Group(tables)
    assert (group.processes, group.index) == (1, 0)
    assert group.run(lambda: "text") == ["text"]
    spread = types.SimpleNamespace(name="c", exchange=Threads(2, 0, [], None))
    with pytest.raises(
        ValueError, match=r"tables: got \['a', 'b'\] of this process alone beside others"
    ):
        Group([*tables, spread])


def test_a_save_that_failed_holds_no_lock_however_long_its_error_lives(tmp_path):
    table = tf_dynemb.Variable(dim=1, name="t")
    with pytest.raises(tf.errors.FailedPreconditionError) as error:
        snapshot.save(tmp_path, table, base="0123456789abcdef")
    snapshot.save(tmp_path, table)
    assert sorted(path.name.split("-")[0] for path in tmp_path.iterdir()) == ["LOCK", "MANIFEST", "rows"]
    assert error.value.message
