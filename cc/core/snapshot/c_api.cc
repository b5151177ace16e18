#include "cc/core/snapshot/c_api.h"

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cc/core/base/c_answer.h"
#include "cc/core/base/crc32c.h"
#include "cc/core/base/file_system.h"
#include "cc/core/base/fingerprint.h"
#include "cc/core/snapshot/reader.h"
#include "cc/core/snapshot/writer.h"

struct dynemb_reader {
  std::unique_ptr<dynemb::SnapshotReader> reader;
  std::string manifest;
  int64_t table = -1;
  dynemb::SnapshotPlace place;
  dynemb::SnapshotBlock block;
};

struct dynemb_writer {
  std::unique_ptr<dynemb::SnapshotWriter> writer;
  std::vector<std::unique_ptr<dynemb::RowsFile>> files;  // of each table
};

namespace dynemb {
namespace {

std::vector<std::string_view> Views(int64_t n, const int64_t* lengths, const char* strings) {
  std::vector<std::string_view> views;
  for (int64_t i = 0; i < n; strings += lengths[i++]) {
    views.emplace_back(strings, static_cast<size_t>(lengths[i]));
  }
  return views;
}

}  // namespace
}  // namespace dynemb

using dynemb::AnswerC;
using dynemb::ConstRows;
using dynemb::Status;

// Nothing else of the op library is visible from outside.
#pragma GCC visibility push(default)
extern "C" {

const char* dynemb_error() { return dynemb::LastCError().c_str(); }

int dynemb_row_bytes(const char* schema, int64_t bytes[3]) {
  return AnswerC([&] {
    dynemb::TableSchema parsed;
    DYNEMB_RETURN_IF_ERROR(dynemb::TableSchema::Parse(schema, &parsed));
    const dynemb::RowLayout layout(parsed);
    bytes[0] = layout.value_bytes;
    bytes[1] = layout.slots_bytes;
    bytes[2] = layout.meta_bytes;
    return Status();
  });
}

int dynemb_initial_slots(const char* schema, char* slots) {
  return AnswerC([&] {
    dynemb::TableSchema parsed;
    DYNEMB_RETURN_IF_ERROR(dynemb::TableSchema::Parse(schema, &parsed));
    dynemb::FillInitialSlots(parsed, slots);
    return Status();
  });
}

int dynemb_fingerprints(int64_t n, const int64_t* lengths, const char* strings, int64_t* keys) {
  return AnswerC([&] {
    const std::vector<std::string_view> views = dynemb::Views(n, lengths, strings);
    for (int64_t i = 0; i < n; ++i) {
      keys[i] = static_cast<int64_t>(dynemb::Fingerprint(views[static_cast<size_t>(i)]));
    }
    return Status();
  });
}

uint32_t dynemb_crc32c(const char* data, int64_t bytes) {
  return dynemb::Crc32c({data, static_cast<size_t>(bytes)});
}

int dynemb_reader_open(const char* folder, dynemb_reader** reader) {
  return AnswerC([&] {
    auto made = std::make_unique<dynemb_reader>();
    DYNEMB_RETURN_IF_ERROR(
        dynemb::SnapshotReader::Open(dynemb::PosixFileSystem(), folder, &made->reader));
    made->manifest = made->reader->manifest().ToText();
    *reader = made.release();
    return Status();
  });
}

const char* dynemb_reader_manifest(const dynemb_reader* reader) { return reader->manifest.c_str(); }

int dynemb_reader_verify(const dynemb_reader* reader) {
  return AnswerC([&] {
    dynemb::InlineExecutor executor;
    dynemb::Context context;
    context.executor = &executor;
    return reader->reader->Verify(context);
  });
}

void dynemb_reader_rewind(dynemb_reader* reader, int64_t table) {
  reader->table = table;
  reader->place = dynemb::SnapshotPlace();
}

int dynemb_reader_next(dynemb_reader* reader, dynemb_block* block) {
  return AnswerC([&] {
    bool done;
    const dynemb::SnapshotBlock& read = reader->block;
    DYNEMB_RETURN_IF_ERROR(
        reader->reader->Next(reader->table, &reader->place, &reader->block, &done));
    *block = dynemb_block();
    block->done = done;
    if (done) return Status();
    block->table = read.table;
    block->rows = read.rows.keys.size;
    block->keys = read.rows.keys.data;
    block->values = read.rows.values.data;
    block->slots = read.rows.slots.data;
    block->meta = read.rows.meta.data;
    if (!read.strings.empty()) {
      block->string_lengths = reinterpret_cast<const int64_t*>(read.strings_payload.data());
      block->strings = read.strings[0].data();
    }
    block->erased = read.erased.size;
    block->erased_keys = read.erased.data;
    return Status();
  });
}

void dynemb_reader_close(dynemb_reader* reader) { delete reader; }

int dynemb_writer_open(const char* folder, dynemb_writer** writer) {
  return AnswerC([&] {
    auto made = std::make_unique<dynemb_writer>();
    DYNEMB_RETURN_IF_ERROR(
        dynemb::SnapshotWriter::Open(dynemb::PosixFileSystem(), folder, &made->writer));
    *writer = made.release();
    return Status();
  });
}

int dynemb_writer_add_table(dynemb_writer* writer, const char* name, const char* schema) {
  return AnswerC([&] {
    dynemb::TableSchema parsed;
    int64_t table;
    std::unique_ptr<dynemb::RowsFile> file;
    DYNEMB_RETURN_IF_ERROR(dynemb::TableSchema::Parse(schema, &parsed));
    DYNEMB_RETURN_IF_ERROR(writer->writer->AddTable(name, parsed, &table));
    DYNEMB_RETURN_IF_ERROR(writer->writer->NewFile(table, &file));
    writer->files.push_back(std::move(file));
    return Status();
  });
}

int dynemb_writer_add(dynemb_writer* writer, const dynemb_block* block) {
  return AnswerC([&] {
    if (block->table < 0 || block->table >= static_cast<int64_t>(writer->files.size())) {
      return dynemb::InvalidArgument("table: got ", block->table, ", want 0 to ",
                                     writer->files.size() - 1);
    }
    dynemb::RowsFile* const file = writer->files[static_cast<size_t>(block->table)].get();
    const dynemb::RowLayout layout(
        writer->writer->manifest().tables[static_cast<size_t>(block->table)].schema);
    dynemb::ConstRowParts rows;
    rows.keys = {block->keys, block->rows};
    rows.values = ConstRows(block->values, block->rows, layout.value_bytes);
    rows.slots = ConstRows(block->slots, block->rows, layout.slots_bytes);
    rows.meta = ConstRows(block->meta, block->rows, layout.meta_bytes);
    DYNEMB_RETURN_IF_ERROR(file->AddErased({block->erased_keys, block->erased}));
    if (block->string_lengths == nullptr) return file->Add(rows);
    return file->Add(rows, dynemb::Views(block->rows, block->string_lengths, block->strings));
  });
}

int dynemb_writer_commit(dynemb_writer* writer, const char* base) {
  return AnswerC([&] {
    uint64_t id = 0;
    if (*base != '\0') DYNEMB_RETURN_IF_ERROR(dynemb::ParseId(base, &id));
    for (const auto& file : writer->files) DYNEMB_RETURN_IF_ERROR(file->Finish());
    return writer->writer->Commit(id);
  });
}

void dynemb_writer_close(dynemb_writer* writer) { delete writer; }

}  // extern "C"
#pragma GCC visibility pop
