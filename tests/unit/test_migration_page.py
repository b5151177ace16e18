"""docs/migrating-from-tfra.md answers every public name of TFRA, and what it names is there.

Its Python blocks run in test_documentation.py.
"""

import pathlib
import re

import pytest

import tf_dynemb

ROOT = pathlib.Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "migrating-from-tfra.md").read_text()
QUOTED = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL))

# What TFRA exports, its documented modules and methods, and the arguments that ours do not take.
NAMES = """
CuckooHashTable CuckooHashTableConfig CuckooHashTableCreator HkvHashTable HkvHashTableConfig
HkvHashTableCreator HkvEvictStrategy RedisTable RedisTableConfig RedisTableCreator
Variable get_variable TrainableWrapper DistributedVariableWrapper DEResourceVariable GraphKeys
embedding_lookup embedding_lookup_sparse embedding_lookup_unique safe_embedding_lookup_sparse
DynamicEmbeddingOptimizer RestrictPolicy TimestampRestrictPolicy FrequencyRestrictPolicy
trainable_wrapper_filter ModelMode enable_train_mode enable_inference_mode get_model_mode
shadow_ops.ShadowVariable shadow_ops.embedding_lookup shadow_ops.embedding_lookup_unique
shadow_ops.embedding_lookup_unique_base shadow_ops.HvdVariable
ragged_embedding_ops.embedding_lookup_sparse ragged_embedding_ops.safe_embedding_lookup_sparse
math.sparse_segment_sum math.sparse_fill_empty_rows math.sparse_reshape
data_flow.dynamic_partition data_flow.dynamic_stitch
FileSystemSaver KVCreator create_slots warm_start WarmStartHook patch_on_tf patch_on_tf_save_restore
register_all __version__ train.DEHvdSaver train.Checkpoint DECheckpoint EmbeddingVariable
upsert accum lookup remove clear size export export_keys_and_scores restrict save_to_file_system
insert export_with_scores reserved_key_start_bit AdamOptimizer AdagradOptimizer GradientDescentOptimizer
load_from_file_system load_from_file_system_with_restore_function get_slot_variables
get_trainable_by_name verify_embedding_weights tables trainable_store
devices partitioner shared_name initializer trainable checkpoint init_size kv_creator restrict_policy
bp_v2 short_file_name partition_strategy validate_indices max_norm synchronous constraint
keras.layers.Embedding keras.layers.BasicEmbedding keras.layers.SquashedEmbedding
keras.layers.FieldWiseEmbedding keras.layers.HvdAllToAllEmbedding keras.layers.LayerNormalization
reduce_pooling keras.models.save_model de_save_model de_hvd_save_model
keras.callbacks.ModelCheckpoint DEHvdModelCheckpoint DEHvdBroadcastGlobalVariablesCallback
embedding_size init_capacity with_unique keep_distribution distribute_strategy
TF_HASHTABLE_INIT_SIZE TFRA_NUM_WORKER_THREADS_FOR_LOOKUP_TABLE_INSERT
TFRA_GPU_HASHTABLE_UPLIMIT_SIZE TFRA_SAVED_KV TFRA_REDIS_CONFIG_PATH TF_USE_LEGACY_KERAS
CUDA_VISIBLE_DEVICES create get_config DynamicEmbeddingSaver with_secondary_unique mpi_size batch_size
get_eager_trainable_by_name
dynamic_embedding_variable_test dynamic_embedding_ops_test dynamic_embedding_optimizer_test
shadow_embedding_ops_test restrict_policies_test cuckoo_hashtable_ops_test hkv_hashtable_ops_test
hkv_hashtable_evict_test redis_table_ops_test redis_table_variable_test horovod_sync_train_test
warm_start_util_test dynamic_partition_op_test dynamic_stitch_op_test math_ops_test math_grad_test
ragged_embedding_ops_test tf_patch_test keras/layers/embedding_test dynamic_layer_normalization_test
""".split()


@pytest.mark.parametrize("name", NAMES)
def test_every_name_has_an_answer(name):
    """In the first column of a table."""
    firsts = [line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| ")]
    assert any(re.search(rf"`[^`]*(?<!\w){re.escape(name)}(?!\w)[^`]*`", first) for first in firsts)


def test_every_row_has_an_answer():
    for line in PAGE.splitlines():
        if line.startswith("|") and not line.startswith("|---"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            assert len(cells) in (2, 3) and cells[0] and any(cells[1:]), line


def test_names_of_ours_are_there():
    ours = {name for quoted in QUOTED for name in re.findall(r"tf_dynemb((?:\.\w+)+)", quoted)}
    assert len(ours) > 10
    for name in ours:
        thing = tf_dynemb
        for part in name.strip(".").split("."):
            thing = getattr(thing, part)


def test_tests_that_it_names_are_there():
    places = [quoted for quoted in QUOTED if re.match(r"(tests|cc)/.*\.(py|cc)", quoted)]
    assert len(places) > 30
    for place in places:
        file, _, name = place.partition("::")
        text = (ROOT / file).read_text()
        assert not name or f"def {name}(" in text or f", {name})" in text, place
