#include "cc/core/storage/flushed_folders.h"

#include <algorithm>
#include <utility>

#include "cc/core/base/fingerprint.h"
#include "cc/core/storage/index_file.h"

namespace dynemb {
namespace {

constexpr int kTries = 100;  // while a table flushes again and again

}  // namespace

Status FlushedFolders::Open(FileSystem* files, const std::vector<std::string>& paths,
                            std::unique_ptr<FlushedFolders>* folders) {
  for (int tries = 1;; ++tries) {
    std::unique_ptr<FlushedFolders> opened(new FlushedFolders);
    DYNEMB_RETURN_IF_ERROR(DiskFolder::OpenToRead(files, paths, &opened->disk_));
    opened->manifest_ = opened->disk_->TakeFlushed();
    opened->CheckParts();
    for (const FlushedShard& shard : opened->manifest_->shards) opened->OpenShard(shard);
    DYNEMB_RETURN_IF_ERROR(opened->failed_);
    if (!opened->damages_.empty()) {
      // A later flush may have removed the files.
      std::shared_ptr<DiskFolder> now;
      DYNEMB_RETURN_IF_ERROR(DiskFolder::OpenToRead(files, paths, &now));
      if (now->TakeFlushed()->ToText() != opened->manifest_->ToText()) {
        if (tries < kTries) continue;
        return Status(Code::kFailedPrecondition,
                      StrCat(paths[0], ": its table flushes all the time; try again later"));
      }
    }
    *folders = std::move(opened);
    return Status();
  }
}

void FlushedFolders::CheckParts() {
  for (size_t i = 1; i < disk_->paths().size(); ++i) {
    const std::string path = disk_->PathOfPart(i), want = disk_->PartText(i);
    std::string text;
    const Status read =
        ReadFile(disk_->files(), path, static_cast<int64_t>(want.size()) + 1, &text);
    // It is written after the first flush, and there is none if that was the last thing done.
    if (read.code() == Code::kNotFound) continue;
    if (!read.ok() && read.code() != Code::kDataLoss) {
      Found(path, 0, read);
    } else if (text != want) {
      Found(path, 0,
            StrCat("it is damaged, or not that of folder ", i + 1, " of ", disk_->paths().size(),
                   " of this table"));
    }
  }
}

void FlushedFolders::OpenShard(const FlushedShard& flushed) {
  const size_t number = shards_.size(), index = files_.size();
  shards_.push_back(std::make_unique<Shard>(disk_));
  Shard* const shard = shards_.back().get();
  const std::string index_path = disk_->PathOf(flushed.index, DiskFolder::Kind::kIndex);
  files_.push_back({index_path, DiskFolder::Kind::kIndex, number, -1, -1, -1, 0});
  for (const auto& [slot, file] : flushed.files) {
    const std::string path = disk_->PathOf(file.number, DiskFolder::Kind::kRows);
    shard->files[slot] = files_.size();
    files_.push_back({path, DiskFolder::Kind::kRows, number, file.bytes, 0, -1, 0});
    std::shared_ptr<const RowLog::File> of_rows;
    const Status opened =
        RowLog::OpenFile(disk_.get(), file, flushed.schemas[file.schema_number], &of_rows);
    if (opened.ok()) {
      shard->log.AddFile(slot, *of_rows);
      files_.back().records = shard->log.records(slot);
      files_.back().record_bytes = shard->log.record_bytes(slot);
    } else {
      Found(path, 0, opened);
    }
  }
  const size_t damages = damages_.size();
  ReadIndex(flushed, shard, &files_[index]);
  CheckTwice(files_[index], shard);
  if (damages_.size() == damages) return;
  for (const auto& [slot, file] : shard->files) files_[file].rows = -1;
}

void FlushedFolders::ReadIndex(const FlushedShard& flushed, Shard* shard, File* index) {
  const bool strings = flushed.schemas.back().strings;
  std::unique_ptr<ReadableFile> file;
  Status read = disk_->files()->NewReadableFile(index->path, &file);
  if (read.ok()) read = file->Size(&index->bytes);
  int64_t position = 0;
  const auto take = [&](const IndexEntries& entries) {
    for (size_t i = 0; i < entries.keys.size(); ++i) {
      const Key key = entries.keys[i];
      const Location location = entries.locations[i];
      const auto of_rows = shard->files.find(RowLog::SlotOf(location));
      if (of_rows == shard->files.end() ||
          (files_[of_rows->second].records >= 0 && !shard->log.HasRecordAt(location))) {
        Found(index->path, position, StrCat("the row of key ", key, " is in no file of rows"));
        continue;
      }
      ++files_[of_rows->second].rows;
      shard->entries.push_back({key, location});
      if (strings && (entries.strings.size() != entries.keys.size() ||
                      static_cast<Key>(Fingerprint(entries.strings[i])) != key)) {
        Found(index->path, position, StrCat("the string of key ", key, " is missing or another"));
      }
    }
    return Status();
  };
  if (read.ok()) {
    read = ReadIndexFile(disk_->files(), index->path, flushed.index, flushed.rows, take, &position);
  }
  if (read.code() == Code::kDataLoss) {
    Found(index->path, position, "it is damaged, cut off or another file, from here on");
  } else if (!read.ok()) {
    Found(index->path, position, read);
  } else if (position != index->bytes) {
    Found(index->path, position, "there are bytes after its end");
  } else {
    index->rows = index->records = flushed.rows;
  }
}

void FlushedFolders::CheckTwice(const File& index, Shard* shard) {
  const auto check = [&](auto Entry::* what, const char* says) {
    std::sort(shard->entries.begin(), shard->entries.end(),
              [&](const Entry& a, const Entry& b) { return a.*what < b.*what; });
    for (size_t i = 1; i < shard->entries.size(); ++i) {
      if (shard->entries[i].*what == shard->entries[i - 1].*what) {
        Found(index.path, -1, StrCat("key ", shard->entries[i].key, " ", says));
      }
    }
  };
  check(&Entry::key, "is there twice");
  check(&Entry::location, "has the row of another key");
}

void FlushedFolders::Verify(size_t number) {
  const File& file = files_[number];
  if (file.kind == DiskFolder::Kind::kIndex || file.records < 0) return;
  const Shard& shard = *shards_[file.shard];
  const int64_t slot = std::find_if(shard.files.begin(), shard.files.end(), [&](const auto& of) {
                         return of.second == number;
                       })->first;
  auto next = std::partition_point(
      shard.entries.begin(), shard.entries.end(),
      [&](const Entry& entry) { return RowLog::SlotOf(entry.location) < slot; });
  // What the index has at a location; these ascend.
  const auto entry_at = [&](Location location) -> const Entry* {
    while (next != shard.entries.end() && next->location < location) ++next;
    return next != shard.entries.end() && next->location == location ? &*next : nullptr;
  };
  const auto record = [&](Key key, Location location, SchemaNumber, const char*) {
    const Entry* const entry = entry_at(location);
    if (entry != nullptr && entry->key != key) {
      Found(
          file.path, RowLog::OffsetOf(location),
          StrCat("the row of key ", key, " is there, and that of key ", entry->key, " should be"));
    }
    return Status();
  };
  const bool is_shared = std::count_if(files_.begin(), files_.end(), [&](const File& other) {
                           return other.path == file.path;
                         }) > 1;
  const auto damaged = [&](Location location) {
    const Entry* const entry = entry_at(location);
    const char* const no_row = is_shared
                                   ? "a record is damaged that is dead, or the row of another shard"
                                   : "a dead record is damaged; no row is lost";
    Found(file.path, RowLog::OffsetOf(location),
          entry == nullptr ? no_row : StrCat("the row of key ", entry->key, " is damaged"));
  };
  const Status scanned = shard.log.ScanFile(slot, record, damaged);
  if (!scanned.ok()) Found(file.path, -1, scanned);
}

void FlushedFolders::Found(const std::string& path, int64_t offset, const std::string& what) {
  const int64_t number = damages_of_[path]++;
  if (number < kMostDamages) damages_.push_back({path, offset, what});
  if (number == kMostDamages) damages_.push_back({path, -1, "there is more, which is not told"});
}

void FlushedFolders::Found(const std::string& path, int64_t offset, const Status& status) {
  if (status.code() == Code::kNotFound) return Found(path, -1, std::string("it is missing"));
  if (status.code() == Code::kResourceExhausted || status.code() == Code::kFailedPrecondition) {
    if (failed_.ok()) failed_ = status;
    return;
  }
  const std::string& said = status.message();
  const bool begins = said.compare(0, path.size() + 2, path + ": ") == 0;
  Found(path, offset, begins ? said.substr(path.size() + 2) : said);
}

}  // namespace dynemb
