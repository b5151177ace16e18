"""The migration pages answer every public name of what people come from, and what they name is there.

Their Python blocks run in test_documentation.py.
"""

import pathlib
import pkgutil
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]

# By page: what is exported there, documented modules and methods, and arguments that ours do not take.
NAMES = {
    "tfra": """
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
insert export_with_scores reserved_key_start_bit max_capacity max_hbm_for_values step_per_epoch
gen_scores_fn HkvEvictStrategy.LRU HkvEvictStrategy.LFU HkvEvictStrategy.EPOCHLRU
HkvEvictStrategy.EPOCHLFU HkvEvictStrategy.CUSTOMIZED
AdamOptimizer AdagradOptimizer GradientDescentOptimizer
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
""",
    "torchrec": """
JaggedTensor JaggedTensor.empty empty_like from_dense_lengths from_dense to_dense to_dense_weights
to_padded_dense to_padded_dense_weights values weights weights_or_none lengths lengths_or_none offsets
offsets_or_none device to copy_ record_stream size_in_bytes pin_memory clear_storage
KeyedJaggedTensor from_lengths_sync from_offsets_sync from_jt_dict concat sync unsync keys stride
stride_per_key stride_per_key_per_rank variable_stride_per_key inverse_indices inverse_indices_or_none
length_per_key length_per_key_or_none offset_per_key offset_per_key_or_none lengths_offset_per_key
index_per_key split permute flatten_lengths __getitem__ to_dict dist_init dist_labels dist_splits
dist_tensors jt_is_equal kjt_is_equal ComputeKJTToJTDict ComputeJTDictToKJT validate_keyed_jagged_tensor
KeyedTensor from_tensor_list regroup regroup_as_dict key_dim
EmbeddingBagConfig EmbeddingConfig num_embeddings embedding_dim name data_type DataType feature_names
weight_init_max weight_init_min get_weight_init_max get_weight_init_min num_features
num_embeddings_post_pruning init_fn need_pos input_dim total_num_buckets use_virtual_table
virtual_table_eviction_policy enable_embedding_update stash_weights pooling PoolingType
CountBasedEvictionPolicy TimestampBasedEvictionPolicy CountTimestampMixedEvictionPolicy
FeatureL2NormBasedEvictionPolicy FeatureScoreBasedEvictionPolicy NoEvictionPolicy
VirtualTableEvictionPolicy
EmbeddingBagCollection is_weighted embedding_bag_configs reset_parameters embedding_bags
EmbeddingCollection need_indices embedding_configs embedding_names_by_table use_gather_select
use_gather_select_per_sharding FusedEmbeddingBagCollection FusedEmbeddingCollection optimizer_type
optimizer_kwargs apply_optimizer_in_backward RowWiseAdagrad DistributedModelParallel
optimizer lr weight_decay enable_grad sparse table_size hash_size
ManagedCollisionModule MCHManagedCollisionModule ManagedCollisionCollection zch_size eviction_interval
ManagedCollisionEmbeddingBagCollection ManagedCollisionEmbeddingCollection HashZchManagedCollisionModule
MCHEvictionPolicy LRU_EvictionPolicy LFU_EvictionPolicy DistanceLFU_EvictionPolicy
threshold_filtering_func input_hash_func
mch_size mch_hash_func eviction_ttl_mins eviction_threshold inference_eviction_ttl_mins
inference_eviction_threshold max_inference_id_num_per_rank
nn.Embedding nn.EmbeddingBag state_dict torch.optim.Adam torch.optim.Adagrad torch.optim.SGD
""",
    "oneembedding": """
make_uniform_initializer make_normal_initializer make_constant_initializer make_trunc_normal_initializer
make_column_options make_table_options make_table make_device_mem_store_options
make_cached_ssd_store_options make_cached_host_mem_store_options persistent_path capacity size_factor
storage_dim physical_block_size cache_budget_mb host_cache_budget_mb MultiTableEmbedding
MultiTableMultiColumnEmbedding padding_idx seed key_type forward save_snapshot load_snapshot Optimizer
Ftrl SmartDecayAdam make_persistent_table_reader make_persistent_table_writer state_dict
flow.nn.Embedding flow.nn.FusedMLP flow.nn.Graph add_optimizer flow.optim.SGD flow.optim.Adam
flow.optim.Adagrad embedding.parameters flow.tensor flow.float loss.backward
""",
    "sok": """
Init global_batch_size seed All2AllDenseEmbedding max_vocabulary_size_per_gpu embedding_vec_size slot_num
nnz_per_slot dynamic_input use_hashtable key_dtype embedding_initializer training
layer.embedding_variable EmbeddingVariable DistributedEmbedding combiner max_nnz max_feature_num
OptimizerScope optimizers.Adam tf.keras.optimizers.Adam LazyAdamOptimizer
experimental_aggregate_gradients split_embedding_variable_from_others get_embedding GraphKeys
TFDistributedEmbedding Saver dump_to_file restore_from_file load_embedding_values
init comm_tool use_legacy_optimizer set_comm_tool Variable DistributedVariable LocalizedVariable mode
global_shape num_gpus global_gpu_id target_gpu key_map DynamicVariable dimension initializer var_type
key_type dtype constraint init_capacity max_capacity evict_strategy max_hbm_for_vectors max_load_factor
max_bucket_size block_size device_id io_by_cpu filter_ratio use_low_frequency_filter size shape
handle_dtype initializer_str backend_type config_dict indices is_static to_static to_dynamic sparse_read
tf.nn.embedding_lookup scatter_add scatter_sub scatter_update assign export filter_variables
lookup_sparse sp_weights combiners all2all_dense_embedding group_lookup sparse_read_and_evict
OptimizerWrapper get_slot_names get_slot lr SGD dump load incremental_model_dump time_threshold
sok.tf isinstance apply_gradients global_step name value read_value gather_nd
SOK_COMPILE_GPU_SM SOK_COMPILE_ASYNC SOK_COMPILE_USE_NVTX SOK_COMPILE_BUILD_TYPE ENABLE_DEEPREC
SOK_COMPILE_WITH_DEEPREC SOK_EVENT_SYNC TF_FORCE_GPU_ALLOW_GROWTH CUDA_DEVICE_ORDER NCCL_LAUNCH_MODE
TF_GPU_THREAD_MODE horovodrun mpirun
""",
    "deeprec": """
get_embedding_variable embedding_dim key_dtype value_dtype initializer trainable partitioner ev_option
EmbeddingVariableOption filter_option evict_option storage_option init_option CounterFilter CBFFilter
filter_freq max_element_size false_positive_probability counter_type GlobalStepEvict steps_to_live
L2WeightEvict l2_weight_threshold InitializerOption default_value_dim default_value_no_permission
StorageOption categorical_column_with_embedding sparse_column_with_embedding total_count
tf.nn.embedding_lookup tf.nn.embedding_lookup_sparse tf.train.AdagradOptimizer tf.train.Saver
-keys -values -freqs -versions -keys_filtered -freqs_filtered
""",
    "horovod": """
hvd.init hvd.rank hvd.size hvd.local_rank hvd.local_size horovodrun mpirun hvd.DistributedOptimizer
hvd.Average hvd.Sum hvd.Adasum compression backward_passes_per_step hvd.DistributedGradientTape
hvd.allreduce hvd.grouped_allreduce hvd.allgather hvd.alltoall hvd.broadcast hvd.broadcast_variables
hvd.broadcast_object hvd.callbacks.BroadcastGlobalVariablesCallback hvd.BroadcastGlobalVariablesHook
hvd.callbacks.MetricAverageCallback hvd.callbacks.LearningRateWarmupCallback
hvd.callbacks.LearningRateScheduleCallback hvd.join hvd.elastic.run hvd.elastic.KerasState
HOROVOD_FUSION_THRESHOLD HOROVOD_CYCLE_TIME HOROVOD_TIMELINE dataset.shard steps_per_epoch verbose
keras.layers.HvdAllToAllEmbedding with_unique with_secondary_unique mpi_size batch_size partition_fn
shadow_ops.HvdVariable DynamicEmbeddingOptimizer synchronous
callbacks.DEHvdBroadcastGlobalVariablesCallback callbacks.ModelCheckpoint DEHvdModelCheckpoint
models.save_model de_save_model de_hvd_save_model train.DEHvdSaver train.Checkpoint DECheckpoint
FileSystemSaver proc_size proc_rank restrict
""",
}
PAGES = {page: (ROOT / "docs" / f"migrating-from-{page}.md").read_text() for page in NAMES}

by_page = pytest.mark.parametrize("page", PAGES)


def quoted(page) -> list:
    """What stands in backquotes, outside of the blocks."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", PAGES[page], flags=re.DOTALL))


def firsts(page) -> list:
    """The first columns of the tables of a page."""
    return [line.split("|")[1] for line in PAGES[page].splitlines() if line.startswith("| ")]


def is_named(name, cells) -> bool:
    return any(re.search(rf"`[^`]*(?<!\w){re.escape(name)}(?!\w)[^`]*`", cell) for cell in cells)


@by_page
def test_names_that_users_bring_are_found_in_a_first_column(page):
    assert [name for name in NAMES[page].split() if not is_named(name, firsts(page))] == []


MODULES = {"tfra": "tfra", "torchrec": "torchrec", "oneembedding": "one_embedding", "sok": "sok"}


@pytest.mark.parametrize("page", MODULES)
def test_public_names_of_a_dialect_are_on_its_page_and_in_a_program(page):
    module = pkgutil.resolve_name(f"tf_dynemb.compat.{MODULES[page]}")
    programs = PAGES[page] + "".join(
        path.read_text()
        for path in [*(ROOT / "tests").rglob("*.py"), *(ROOT / "examples").glob("*.py")]
        if path != pathlib.Path(__file__)
    )
    for name in module.__all__:
        assert is_named(name, PAGES[page].splitlines()), f"{name} is not on the page"
        assert re.search(rf"\b{name}\b", programs), f"no program or test has {name}"


def test_what_sok_exports_is_there_or_said_to_be_missing():
    names = """Init OptimizerScope DistributedEmbedding All2AllDenseEmbedding get_embedding Saver
        split_embedding_variable_from_others GraphKeys optimizers sok.tf TFDistributedEmbedding
        init filter_variables Variable DistributedVariable LocalizedVariable DynamicVariable assign
        export OptimizerWrapper SGD lookup_sparse sparse_read_and_evict all2all_dense_embedding dump load
        incremental_model_dump set_comm_tool""".split()
    missing = set()
    for row in PAGES["sok"].splitlines():
        if row.startswith("| ") and "lacks the name" in row:
            missing |= {name for name in names if f"`{name}`" in row.split("|")[1]}
    for name in names:
        try:
            pkgutil.resolve_name(f"tf_dynemb.compat.sok.{name.removeprefix('sok.')}")
        except AttributeError:
            assert name in missing
        else:
            assert name not in missing, name


@by_page
def test_every_row_has_an_answer(page):
    for line in PAGES[page].splitlines():
        if line.startswith("|") and not line.startswith("|---"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            assert len(cells) in (2, 3) and cells[0] and any(cells[1:]), line


@by_page
def test_names_of_ours_are_there(page):
    ours = {name for each in quoted(page) for name in re.findall(r"tf_dynemb((?:\.\w+)+)", each)}
    assert len(ours) > 7
    for name in ours:
        pkgutil.resolve_name(f"tf_dynemb{name}")


def test_tests_that_the_page_on_tfra_names_are_there():
    places = [each for each in quoted("tfra") if re.match(r"(tests|cc)/.*\.(py|cc)", each)]
    assert len(places) > 30
    for place in places:
        file, _, name = place.partition("::")
        text = (ROOT / file).read_text()
        assert not name or f"def {name}(" in text or f", {name})" in text, place
