#include "cc/core/snapshot/loader.h"

#include <algorithm>
#include <limits>
#include <mutex>
#include <utility>

#include "cc/core/table/row_adapter.h"

namespace dynemb {
namespace {

// The keys that a table of a snapshot erases and that do not come again, in order.
Status ReadErasedKeys(const Context& context, const SnapshotReader& reader, int64_t table,
                      std::vector<Key>* keys) {
  SnapshotPlace place;
  std::vector<BlockEntry> all, erased, rows;
  DYNEMB_RETURN_IF_ERROR(reader.List(table, std::numeric_limits<int64_t>::max(), &place, &all));
  for (const BlockEntry& block : all) {
    if (block.kind == BlockKind::kErased) erased.push_back(block);
    if (HasRows(block.kind)) rows.push_back(block);
  }
  std::mutex mutex;
  DYNEMB_RETURN_IF_ERROR(
      reader.ForEachBlock(context, erased, [&](int64_t, const SnapshotBlock& block) {
        std::lock_guard<std::mutex> lock(mutex);
        keys->insert(keys->end(), block.erased.begin(), block.erased.end());
        return Status();
      }));
  if (keys->empty()) return Status();
  std::sort(keys->begin(), keys->end());
  keys->erase(std::unique(keys->begin(), keys->end()), keys->end());
  std::vector<bool> comes_again(keys->size());
  std::vector<Key> coming;
  for (const BlockEntry& block : rows) {
    coming.resize(static_cast<size_t>(block.records));
    DYNEMB_RETURN_IF_ERROR(reader.ReadKeys(block, coming.data()));
    for (const Key key : coming) {
      const auto at = std::lower_bound(keys->begin(), keys->end(), key);
      if (at != keys->end() && *at == key)
        comes_again[static_cast<size_t>(at - keys->begin())] = true;
    }
  }
  size_t left = 0;
  for (size_t i = 0; i < keys->size(); ++i) {
    if (!comes_again[i]) (*keys)[left++] = (*keys)[i];
  }
  keys->resize(left);
  return Status();
}

ChangeBlock ErasedOf(const std::vector<Key>& keys, const TableSchema& schema) {
  ChangeBlock change;
  change.schema = &schema;
  change.erased = keys;
  return change;
}

ChangeBlock RowsOf(const SnapshotBlock& block, const TableSchema& schema) {
  ChangeBlock change;
  change.schema = &schema;
  change.rows = block.rows;
  change.strings = block.strings;
  return change;
}

}  // namespace

Status ApplyBlock(const Context& context, const ChangeBlock& block,
                  const Span<const int32_t>* shard_ids, const std::vector<Table*>& shards,
                  KeyStrings* strings, const KeyPart& part) {
  const TableSchema& to = shards[0]->schema();
  DYNEMB_RETURN_IF_ERROR(CheckCompatible(*block.schema, to));
  const Span<const Key> keys = block.rows.keys;
  const int64_t count = static_cast<int64_t>(shards.size());
  std::vector<int32_t> by_key;
  Span<const int32_t> shard_of_row;
  if (shard_ids != nullptr) {
    shard_of_row = *shard_ids;
  } else if (count > 1) {
    shard_of_row = by_key = KeyMod(keys, count);
  }
  Routing routing;
  DYNEMB_RETURN_IF_ERROR(Routing::Make(HostContext(context), keys, shard_of_row,
                                       static_cast<int>(count), &routing, part));
  KeyStrings::PinGuard pin;
  if (strings != nullptr) {
    DYNEMB_RETURN_IF_ERROR(strings->Record(keys, block.strings, context));
    DYNEMB_RETURN_IF_ERROR(KeyStrings::PinGuard::Begin(strings, keys, &pin, context));
  }
  if (block.erased.size > 0) {
    for (Table* shard : shards) {
      DYNEMB_RETURN_IF_ERROR(shard->Erase(context, {block.erased}, Report()));
    }
  }
  if (keys.size == 0) return Status();
  RowAdapter adapter(*block.schema, to);
  return InsertRows(context, shards, routing, adapter.Adapt(block.rows));
}

Status LoadErased(const Context& context, const SnapshotReader& reader, int64_t table,
                  const std::vector<Table*>& shards) {
  std::vector<Key> keys;
  DYNEMB_RETURN_IF_ERROR(ReadErasedKeys(context, reader, table, &keys));
  const TableSchema& schema = reader.manifest().tables[static_cast<size_t>(table)].schema;
  return ApplyBlock(context, ErasedOf(keys, schema), nullptr, shards, nullptr);
}

Status LoadRows(const Context& context, const SnapshotReader& reader, Span<const BlockEntry> blocks,
                const Span<const int32_t>* shard_ids, const std::vector<Table*>& shards,
                KeyStrings* strings, const KeyPart& part) {
  const auto rows_of = [](const BlockEntry& block) {
    return HasRows(block.kind) ? block.records : 0;
  };
  std::vector<int64_t> first_row = {0};  // of each block
  for (const BlockEntry& block : blocks) first_row.push_back(first_row.back() + rows_of(block));
  if (shard_ids != nullptr && shard_ids->size != first_row.back()) {
    return InvalidArgument("shard_ids: got ", shard_ids->size, ", want one per row, ",
                           first_row.back(), ", from the partitioner");
  }
  return reader.ForEachBlock(context, blocks, [&](int64_t number, const SnapshotBlock& block) {
    const ChangeBlock change =
        RowsOf(block, reader.manifest().tables[static_cast<size_t>(block.table)].schema);
    Span<const int32_t> of_block;
    if (shard_ids != nullptr) {
      of_block = {shard_ids->data + first_row[static_cast<size_t>(number)], block.rows.keys.size};
    }
    return ApplyBlock(OneThread(), change, shard_ids == nullptr ? nullptr : &of_block, shards,
                      strings, part);
  });
}

Status TableChanges::ReadErased(const Context& context, const SnapshotReader& reader,
                                int64_t table) {
  schema_ = reader.manifest().tables[static_cast<size_t>(table)].schema;
  erased_.clear();
  return ReadErasedKeys(context, reader, table, &erased_);
}

Status TableChanges::ReadRows(const Context& context, const SnapshotReader& reader,
                              Span<const BlockEntry> blocks) {
  const size_t before = blocks_.size();
  blocks_.resize(before + static_cast<size_t>(blocks.size));
  return reader.ForEachBlock(context, blocks, [&](int64_t number, SnapshotBlock& block) {
    blocks_[before + static_cast<size_t>(number)] = std::move(block);  // views stay: of its vectors
    return Status();
  });
}

Status TableChanges::Apply(const Context& context, const std::vector<Table*>& shards,
                           KeyStrings* strings) const {
  DYNEMB_RETURN_IF_ERROR(ApplyBlock(context, ErasedOf(erased_, schema_), nullptr, shards, strings));
  for (const SnapshotBlock& block : blocks_) {
    DYNEMB_RETURN_IF_ERROR(ApplyBlock(context, RowsOf(block, schema_), nullptr, shards, strings));
  }
  return Status();
}

}  // namespace dynemb
