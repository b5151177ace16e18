#include "cc/core/storage/index_file.h"

#include <algorithm>
#include <cstring>

#include "cc/core/base/bytes.h"
#include "cc/core/base/crc32c.h"

namespace dynemb {
namespace {

constexpr char kMagic[8] = {'d', 'y', 'n', 'e', 'm', 'b', 'x', '1'};
constexpr int64_t kHeaderBytes = 16;       // of the file
constexpr int64_t kBlockHeaderBytes = 16;  // checksum, entries, bytes of strings
constexpr int64_t kLocationBytes = 6;
constexpr int64_t kMostEntries = 1 << 16;  // of a block
constexpr int64_t kMostStringBytes = int64_t{1} << 30;

uint32_t Checksum(uint64_t number, std::string_view block) {
  char bytes[8];
  Store(number, bytes);
  return Crc32c(block.substr(4), Crc32c({bytes, 8}));
}

int64_t FixedBytes(int64_t entries, bool strings) {
  return entries * (8 + kLocationBytes + (strings ? 4 : 0));
}

}  // namespace

Status IndexFileWriter::Write(std::string_view bytes) {
  const int64_t size = static_cast<int64_t>(bytes.size());
  if (folder_ != nullptr) DYNEMB_RETURN_IF_ERROR(folder_->TakeSpace(size));
  bytes_ += size;
  return file_->Append(bytes);
}

Status IndexFileWriter::Open(FileSystem* files, const std::string& path, uint64_t number,
                             DiskFolder* folder) {
  folder_ = folder;
  number_ = number;
  DYNEMB_RETURN_IF_ERROR(files->NewWritableFile(path, &file_));
  char header[kHeaderBytes];
  std::memcpy(header, kMagic, sizeof(kMagic));
  Store(number, header + 8);
  return Write({header, kHeaderBytes});
}

Status IndexFileWriter::Append(const IndexEntries& all) {
  const int64_t size = static_cast<int64_t>(all.keys.size());
  const bool strings = !all.strings.empty();
  for (int64_t begin = 0; begin < size;) {
    int64_t n = 0, string_bytes = 0;
    while (begin + n < size && n < kMostEntries && string_bytes < kMostStringBytes / 2) {
      if (strings) string_bytes += static_cast<int64_t>(all.strings[begin + n].size());
      ++n;
    }
    block_.resize(static_cast<size_t>(kBlockHeaderBytes + FixedBytes(n, strings) + string_bytes));
    char* at = &block_[0];
    Store(static_cast<uint32_t>(n) | (strings ? uint32_t{1} << 31 : 0), at + 4);
    Store(string_bytes, at + 8);
    at += kBlockHeaderBytes;
    std::memcpy(at, &all.keys[begin], static_cast<size_t>(n) * 8);
    at += n * 8;
    for (int64_t i = 0; i < n; ++i, at += kLocationBytes) {
      std::memcpy(at, &all.locations[begin + i], kLocationBytes);
    }
    for (int64_t i = 0; strings && i < n; ++i, at += 4) {
      Store(static_cast<uint32_t>(all.strings[begin + i].size()), at);
    }
    for (int64_t i = 0; strings && i < n; ++i) {
      const std::string_view string = all.strings[begin + i];
      at = std::copy(string.begin(), string.end(), at);
    }
    Store(Checksum(number_, block_), &block_[0]);
    DYNEMB_RETURN_IF_ERROR(Write(block_));
    entries_ += n;
    begin += n;
  }
  return Status();
}

Status IndexFileWriter::Finish() {
  DYNEMB_RETURN_IF_ERROR(file_->Sync());
  return file_->Close();
}

Status IndexFileReader::Damaged() const {
  return Status(Code::kDataLoss, StrCat(path_, ": it is damaged or another file, at byte ", at_));
}

Status IndexFileReader::Open(FileSystem* files, const std::string& path, uint64_t number,
                             int64_t entries) {
  path_ = path;
  number_ = number;
  at_ = 0;
  left_ = entries;
  DYNEMB_RETURN_IF_ERROR(files->NewReadableFile(path, &file_));
  DYNEMB_RETURN_IF_ERROR(file_->Size(&size_));
  char header[kHeaderBytes];
  if (size_ < kHeaderBytes || entries > size_ / FixedBytes(1, false)) return Damaged();
  DYNEMB_RETURN_IF_ERROR(file_->Read(0, kHeaderBytes, header));
  if (std::memcmp(header, kMagic, sizeof(kMagic)) != 0 || Load<uint64_t>(header + 8) != number) {
    return Damaged();
  }
  at_ = kHeaderBytes;
  return Status();
}

Status IndexFileReader::Next(const IndexEntries** entries) {
  *entries = &some_;
  some_.keys.clear();
  some_.locations.clear();
  some_.strings.clear();
  if (left_ == 0) return Status();
  if (size_ - at_ < kBlockHeaderBytes) return Damaged();
  char block_header[kBlockHeaderBytes];
  DYNEMB_RETURN_IF_ERROR(file_->Read(at_, kBlockHeaderBytes, block_header));
  const uint32_t word = Load<uint32_t>(block_header + 4);
  const bool strings = word >> 31 != 0;
  const int64_t n = word & ~(uint32_t{1} << 31);
  const int64_t string_bytes = Load<int64_t>(block_header + 8);
  if (n == 0 || n > kMostEntries || n > left_ || string_bytes < 0 ||
      string_bytes > size_ - at_ - kBlockHeaderBytes - FixedBytes(n, strings)) {
    return Damaged();
  }
  bytes_.resize(static_cast<size_t>(kBlockHeaderBytes + FixedBytes(n, strings) + string_bytes));
  DYNEMB_RETURN_IF_ERROR(file_->Read(at_, static_cast<int64_t>(bytes_.size()), &bytes_[0]));
  if (Load<uint32_t>(bytes_.data()) != Checksum(number_, bytes_)) return Damaged();
  const char* from = bytes_.data() + kBlockHeaderBytes;
  some_.keys.resize(static_cast<size_t>(n));
  std::memcpy(some_.keys.data(), from, static_cast<size_t>(n) * 8);
  from += n * 8;
  some_.locations.assign(static_cast<size_t>(n), 0);
  for (Location& location : some_.locations) {
    std::memcpy(&location, from, kLocationBytes);
    from += kLocationBytes;
  }
  const char* string = from + n * 4;
  const char* const end = bytes_.data() + bytes_.size();
  for (int64_t i = 0; strings && i < n; ++i, from += 4) {
    const uint32_t length = Load<uint32_t>(from);
    if (length > end - string) return Damaged();
    some_.strings.emplace_back(string, length);
    string += length;
  }
  at_ += static_cast<int64_t>(bytes_.size());
  left_ -= n;
  return Status();
}

Status ReadIndexFile(FileSystem* files, const std::string& path, uint64_t number, int64_t entries,
                     const EntriesFunction& block, int64_t* position) {
  IndexFileReader reader;
  const auto read = [&] {
    DYNEMB_RETURN_IF_ERROR(reader.Open(files, path, number, entries));
    while (true) {
      if (position != nullptr) *position = reader.position();  // where the block begins
      const IndexEntries* some;
      DYNEMB_RETURN_IF_ERROR(reader.Next(&some));
      if (some->keys.empty()) return Status();
      DYNEMB_RETURN_IF_ERROR(block(*some));
    }
  };
  return read();
}

}  // namespace dynemb
