"""Restricting a Variable: which rows stay, when, what goes with them, and what is refused.

Random sequences of writes against a dict are in tests/property/test_restrict_model.py.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from restrict_model import mix64, status_of, survivors
from table_rows import INT64_MAX, INT64_MIN, int64, keys_of, rows_of, values_of

import tf_dynemb
from tf_dynemb.base.op_library import ops

TIME, FREQUENCY = tf_dynemb.TimestampRestrictPolicy, tf_dynemb.FrequencyRestrictPolicy
OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.5),
    "adagrad": lambda: keras.optimizers.Adagrad(0.5),
    "momentum": lambda: keras.optimizers.SGD(0.5, momentum=0.9),
    "ftrl": lambda: keras.optimizers.Ftrl(0.5),
    "rowwise": lambda: tf_dynemb.RowwiseAdagrad(0.5),
}


def make(policy=TIME, shards=2, dim=1, **arguments):
    devices = ["/CPU:0"] * shards
    return tf_dynemb.Variable(dim=dim, devices=devices, restrict_policy=policy, **arguments)


@pytest.mark.parametrize("policy", [TIME, FREQUENCY])
def test_a_policy_without_a_table_is_as_good_as_its_class(policy):
    table = tf_dynemb.Variable(restrict_policy=policy())
    put(table, [1, 2])
    assert type(table.restrict_policy) is policy
    assert sorted(table.restrict_policy.status[0].numpy()) == [1, 2]
    for use in (lambda: policy().status, lambda: policy().apply_restriction(1)):
        with pytest.raises(ValueError, match=f"{policy.__name__}: got no Variable when it was made"):
            use()


@pytest.mark.parametrize(
    ("policy", "made_with"), [(TIME, None), (TIME, FREQUENCY), (FREQUENCY, None), (FREQUENCY, TIME)]
)
def test_a_policy_of_rows_without_its_numbers_says_so(policy, made_with):
    table = tf_dynemb.Variable(name="users", restrict_policy=made_with)
    put(table, [1, 2])
    for what in ("status", "apply_restriction"):
        text = f"{policy.__name__}.{what}: the rows of users have no numbers of this policy"
        with pytest.raises(ValueError, match=text):
            policy(table).status if what == "status" else policy(table).apply_restriction(1)
    assert int(table.size()) == 2


def put(table, keys):
    table.upsert(int64(keys), tf.zeros([len(keys), table.dim]))


def function_of(method, *signature):
    """The method as a tf.function, which can give no operation back."""

    def call(*arguments):
        method(*arguments)

    return tf.function(call, input_signature=signature or None)


def trainer(table, optimizer):
    """A function of keys that takes a training step."""
    optimizer = tf_dynemb.DynamicEmbeddingOptimizer(optimizer)

    def step(keys):
        with tf.GradientTape() as tape:
            rows = tf_dynemb.embedding_lookup(table, int64(keys))
            loss = tf.reduce_sum(tf.square(rows - 1.0))
        optimizer.apply(tape.gradient(loss, [table.handle]), [table.handle])

    return step


@pytest.mark.parametrize("shards", [1, 2, 3, 7])
@pytest.mark.parametrize("policy", [TIME, FREQUENCY])
def test_exactly_so_many_stay_over_all_shards(policy, shards):
    """Whether or not the shards divide the number, and also if one of them holds nearly everything."""
    rng = np.random.default_rng(shards)
    table = make(policy, shards, init_size=10)
    numbers = {}
    for call in range(30):
        keys = np.where(rng.random(20) < 0.7, shards, 1) * rng.integers(-300, 300, 20)
        put(table, keys)
        for key in set(keys.tolist()):
            numbers[key] = call if policy is TIME else numbers.get(key, 0) + 1
    for n in (len(numbers) + 1, len(numbers), 100, 97, 10, 1, 0):
        table.restrict(n)
        stay = survivors(numbers, n)
        assert len(stay) == min(n, len(numbers))
        assert keys_of(table) == stay


def test_ties_go_by_the_hash_of_the_key():
    keys = [INT64_MIN, -5, 0, 1, 2, 3, 2**40, INT64_MAX]
    by_hash = [keys[i] for i in np.argsort(mix64(keys))]
    for shards in (1, 3):
        table = make(FREQUENCY, shards)
        put(table, keys)
        for n in range(len(keys), -1, -1):
            table.restrict(n)
            assert keys_of(table) == set(by_hash[len(keys) - n :])


def test_nothing_happens_up_to_the_trigger():
    table = make()
    put(table, range(10))
    table.restrict(3, trigger=10)
    assert int(table.size()) == 10
    table.restrict(3, trigger=9)
    assert int(table.size()) == 3
    table.restrict(5, trigger=0)  # there are fewer than that
    assert int(table.size()) == 3


def test_every_kind_of_write_counts_and_reading_does_not():
    table = make(FREQUENCY)
    step = trainer(table, keras.optimizers.SGD(0.1))
    put(table, [1, 2, 3, 4])
    table.accum(int64([2, 9]), tf.zeros([2, 1]), tf.ones([2, 1]), [True, True])  # 9 had gone
    step([3, 3, 3])
    step([3, 4])
    table.lookup(int64([1, 1, 1]))
    table.remove(int64([8]))
    assert status_of(table) == {1: 1, 2: 2, 3: 3, 4: 2}


@pytest.mark.parametrize("policy", [TIME, FREQUENCY])
def test_rows_that_were_only_upserted_can_go(policy):
    table = make(policy)
    put(table, [1, 2, 3])
    step = trainer(table, keras.optimizers.Adagrad(0.1))
    step([3, 4, 5])
    step([4, 5])
    table.restrict(2)
    assert keys_of(table) == {4, 5}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_rows_stay_whole_and_slots_go_with_them(optimizer):
    """What stays keeps every byte; what comes back is as in a table that never had it."""
    table, fresh = make(FREQUENCY, dim=3, initializer=0.5), make(FREQUENCY, dim=3, initializer=0.5)
    step = trainer(table, OPTIMIZERS[optimizer]())
    for keys in ([1, 2, 3, 4], [1, 2, 3], [1, 2]):
        step(keys)
    before = rows_of(table)
    table.restrict(2)
    assert rows_of(table) == {key: before[key] for key in (1, 2)}
    step([3])
    trainer(fresh, OPTIMIZERS[optimizer]())([3])
    assert rows_of(table)[3] == rows_of(fresh)[3]


def test_later_writes_in_one_function_are_later():
    """The clock is read when the write runs: not while tracing, nor all at the beginning."""
    table = make(TIME, shards=3)

    @tf.function(input_signature=[tf.TensorSpec([], tf.int64)])
    def write(first):
        for place in range(10):
            table.upsert([first - place], [[0.0]])

    restrict = function_of(table.restrict, *[tf.TensorSpec([], tf.int64)] * 2)
    for first in (9, 109, -1, 9):
        write(int64(first))
    status = status_of(table)
    in_order = [*range(109, 99, -1), *range(-1, -11, -1), *range(9, -1, -1)]
    assert sorted(status, key=status.get) == in_order
    assert len(set(status.values())) == 30
    restrict(int64(12), int64(30))
    assert int(table.size()) == 30
    restrict(int64(12), int64(29))
    assert keys_of(table) == set(in_order[-12:])


def test_times_are_microseconds_of_the_system_clock_and_one_call_has_one():
    table = make(TIME, shards=3)
    before = tf.timestamp()
    put(table, range(20))
    (number,) = set(status_of(table).values())
    assert float(before) <= number / 1e6 <= float(tf.timestamp())


def test_status_copies_neither_values_nor_slots():
    table = make(FREQUENCY)
    step = trainer(table, keras.optimizers.Adam(0.1))
    step([3, 4])
    step([4])
    whole = table.resource.export_rows_with_strings()
    keys, values, slots, meta, *_ = table.resource.export_rows_with_strings(whole_rows=False)
    assert values.shape == (2, 0) and slots.shape == (2, 0) and whole[2].shape[1] > 0
    np.testing.assert_array_equal(keys, whole[0])
    np.testing.assert_array_equal(meta, whole[3])
    assert status_of(table) == {3: 1, 4: 2}


def test_status_has_the_keys_that_export_has():
    table = make(FREQUENCY, key_dtype=tf.string)
    table.upsert(tf.constant(["a", "b", "a"]), tf.zeros([3, 1]))
    assert status_of(table) == {int(key): 1 for key in tf_dynemb.fingerprint(tf.constant(["a", "b"]))}
    table = make(FREQUENCY, key_dtype=tf.int32)
    table.upsert([4, -4], tf.zeros([2, 1]))
    assert table.restrict_policy.status[0].dtype == tf.int32
    assert status_of(table) == {4: 1, -4: 1}
    assert status_of(make()) == {}


def test_eagerly_none_and_in_a_graph_the_operation():
    table = make()
    assert table.restrict(1) is None
    assert table.restrict(tf.constant(1), trigger=np.int32(4), name="cut") is None
    with tf.Graph().as_default():
        graph_table = make()
        operation = graph_table.restrict(1, name="cut")
        assert (operation.name, operation.type) == ("cut", "DynembRestrict")


def test_in_a_session():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        table = make(TIME)
        size, restrict = table.size(), table.restrict(1)
        first, second = (table.upsert(int64([key]), [[1.0]]) for key in (1, 2))
        session.run(second)
        session.run(first)
        session.run(restrict)
        assert session.run(size) == 1
        assert session.run(table.export()[0]).tolist() == [1]


@pytest.mark.parametrize("policy", [TIME, FREQUENCY])
@pytest.mark.parametrize("shards", [1, 3])
def test_a_checkpoint_brings_the_numbers_back(policy, shards, tmp_path):
    """TFRA's issue 385: after a reload it restricted nothing, since its second table was not saved."""
    table = make(policy)
    for keys in (range(10), range(5, 15), range(5, 8)):
        put(table, keys)
    path = tf.train.Checkpoint(table=table).save(tmp_path / "c")
    other = make(policy, shards)
    put(other, [77])
    tf.train.Checkpoint(table=other).restore(path).assert_consumed()
    assert status_of(other) == status_of(table)
    for each in (table, other):
        put(each, [0, 1])
        each.restrict(6)
    assert keys_of(other) == keys_of(table) == survivors(status_of(table), 6)


def test_a_delta_knows_what_a_restriction_removed(tmp_path):
    table = make(FREQUENCY)
    for keys in (range(10), range(5), range(3)):
        put(table, keys)
    base = tf_dynemb.snapshot.save(tmp_path / "full", table, follow=True)
    table.restrict(4)
    put(table, [20])
    tf_dynemb.snapshot.save(tmp_path / "delta", table, base=base)
    other = make(FREQUENCY, shards=3)
    tf_dynemb.snapshot.restore([tmp_path / "full", tmp_path / "delta"], other)
    assert status_of(other) == status_of(table)
    assert status_of(table).keys() == survivors({0: 3, 1: 3, 2: 3, 3: 2, 4: 2}, 4) | {20}


def test_a_saved_model_writes_numbers_and_restricts(tmp_path):
    module = tf.Module()
    module.table = table = make(TIME)
    vector, scalar = tf.TensorSpec([None], tf.int64), tf.TensorSpec([], tf.int64)
    module.put = function_of(lambda keys: table.upsert(keys, tf.zeros([tf.size(keys), 1])), vector)
    module.restrict = function_of(table.restrict, scalar)
    module.keys = tf.function(lambda: table.export()[0], input_signature=[])
    for key in range(5):
        module.put(int64([key]))
    tf.saved_model.save(module, tmp_path / "m")
    loaded = tf.saved_model.load(tmp_path / "m")
    for key in (2, 9):
        loaded.put(int64([key]))
    loaded.restrict(int64(3))
    assert sorted(loaded.keys().numpy()) == [2, 4, 9]
    assert int(table.size()) == 5


@pytest.mark.parametrize("policies", [(TIME, None), (None, TIME), (TIME, FREQUENCY)])
@pytest.mark.parametrize("way", ["checkpoint", "snapshot"])
def test_another_policy_begins_at_zero(way, policies, tmp_path):
    """Rows come back; of their numbers those that the table keeps too, and 0 for those they lack."""
    table, other = (make(policy) for policy in policies)
    put(table, [1, 2])
    put(other, [3])
    if way == "checkpoint":
        tf.train.Checkpoint(table=other).restore(tf.train.Checkpoint(table=table).save(tmp_path / "c"))
    else:
        tf_dynemb.snapshot.save(tmp_path, {"t": table})
        tf_dynemb.snapshot.restore(tmp_path, {"t": other})
    assert values_of(other) == values_of(table)
    if other.restrict_policy is not None:
        assert other.restrict_policy.status[1].numpy().tolist() == [0, 0]
        put(other, [2, 9])
        other.restrict(2)
        assert keys_of(other) == {2, 9}


def test_without_a_policy_it_warns_and_does_nothing():
    table = make(None)
    put(table, [1, 2])
    assert table.restrict_policy is None
    with pytest.warns(UserWarning, match="restrict does nothing without a policy"):
        assert table.restrict(1) is None
    assert int(table.size()) == 2


REFUSED = {
    "a fraction": ((2.0,), TypeError, "num_reserved: got 2.0, want an integer"),
    "text": (("2",), TypeError, "num_reserved: got '2', want an integer"),
    "None": ((None,), TypeError, "num_reserved: got None, want an integer"),
    "bool": ((True,), TypeError, "num_reserved: got True, want an integer"),
    "float tensor": ((tf.constant(2.0),), TypeError, "num_reserved: got .*want an integer"),
    "negative": ((-1,), ValueError, "num_reserved: got -1, want a number of rows >= 0"),
    "negative tensor": ((tf.constant(-1),), ValueError, "num_reserved: got -1, want a number of rows"),
    "vector": ((tf.constant([1, 2]),), ValueError, r"num_reserved: got shape \(2,\), want a scalar"),
    "trigger a fraction": ((1, 2.5), TypeError, "trigger: got 2.5, want an integer"),
    "trigger negative": ((1, -2), ValueError, "trigger: got -2, want a number of rows >= 0"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_number_of_rows_is_refused(case):
    arguments, error, message = REFUSED[case]
    table = make()
    put(table, range(5))
    with pytest.raises(error, match=message):
        table.restrict(*arguments)
    assert int(table.size()) == 5


def test_what_only_the_run_shows_is_refused_there():
    table = make()
    put(table, range(5))
    restrict = function_of(table.restrict)
    for arguments, message in (
        ((-1, 3), "num_reserved: got -1, want a number of rows >= 0"),
        ((3, -1), "trigger: got -1, want a number of rows >= 0"),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            restrict(*map(int64, arguments))
    untold = function_of(table.restrict, tf.TensorSpec(None, tf.int64))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"num_reserved: got shape \[1\]"):
        untold(int64([2]))
    handle = table.resource.resource_handle
    with pytest.raises(tf.errors.FailedPreconditionError, match="field: got count, which the rows"):
        ops.dynemb_restrict(handle, 2, 2, field="count")
    assert int(table.size()) == 5


def test_the_policy_is_given_as_a_class():
    table = make()
    assert type(table.restrict_policy) is TIME
    assert table.restrict_policy.var is table
    for wrong in (3, tf.Variable, int):
        with pytest.raises(TypeError, match="restrict_policy: got .*want a subclass of"):
            make(wrong)


def test_of_an_instance_of_a_policy_its_class_counts():
    table = make(FREQUENCY)
    other = make(table.restrict_policy)
    assert type(other.restrict_policy) is FREQUENCY
    assert other.restrict_policy.var is other
    put(other, [1, 2, 1])
    put(other, [2])
    other.restrict(1)
    assert other.export()[0].numpy().tolist() == [2]
    with pytest.raises(TypeError, match="abstract"):
        make(tf_dynemb.RestrictPolicy)


class PriorityRestrictPolicy(tf_dynemb.RestrictPolicy):
    """Keeps what was last written under the highest priority."""

    def __init__(self, var):
        super().__init__(var)
        self.priority = tf.Variable(0, dtype=tf.int64)

    def now(self):
        return self.priority


def test_a_policy_of_ones_own():
    table = make(PriorityRestrictPolicy)
    priority = table.restrict_policy.priority
    write = function_of(lambda keys: table.upsert(keys, tf.zeros([2, 1])))
    for number, keys in ((5, [1, 2]), (INT64_MIN, [3, 4]), (-1, [5, 6]), (INT64_MAX, [7, 4])):
        priority.assign(number)
        write(int64(keys))
    want = {1: 5, 2: 5, 3: INT64_MIN, 5: -1, 6: -1, 7: INT64_MAX, 4: INT64_MAX}
    assert status_of(table) == want
    for n in (6, 4, 3, 1):
        table.restrict(n)
        assert keys_of(table) == survivors(want, n)


def test_a_policy_of_ones_own_that_cannot_work_is_refused():
    with pytest.raises(TypeError, match="Old.apply_update: nothing calls it.*override now"):
        type("Old", (tf_dynemb.RestrictPolicy,), {"apply_update": lambda self, ids: None})
    with pytest.raises(ValueError, match="Odd.meta_field: got 'score', want 'used' or 'count'"):
        type("Odd", (tf_dynemb.RestrictPolicy,), {"meta_field": "score"})
    table = make(type("Float", (tf_dynemb.RestrictPolicy,), {"now": lambda self: 1.5}))
    with pytest.raises(TypeError, match="Float.now: got float32, want an int64 scalar"):
        put(table, [1])
    table = make(type("Vector", (tf_dynemb.RestrictPolicy,), {"now": lambda self: [1, 2]}))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"now: got shape \[2\], want a scalar"):
        put(table, [1])
    assert values_of(table) == {}


def test_status_of_a_table_without_the_policy_is_refused():
    for table in (make(None), make(FREQUENCY)):
        put(table, [1])
        with pytest.raises(ValueError, match="TimestampRestrictPolicy.status: the rows of .* have no"):
            _ = TIME(table).status
