// RowLog: rows in append-only files, found by their Location; FORMAT.md describes them.
//
// A record never changes. Which of them are live the owner says, by Live and Dead, and the log
// counts the bytes; a file none of whose records is live is removed. Every record has a checksum,
// so that one can be read alone, in one read.
#ifndef TF_DYNEMB_CC_CORE_STORAGE_ROW_LOG_H_
#define TF_DYNEMB_CC_CORE_STORAGE_ROW_LOG_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cc/core/base/file_system.h"
#include "cc/core/base/span.h"
#include "cc/core/base/status.h"
#include "cc/core/storage/disk_folder.h"
#include "cc/core/storage/disk_index.h"
#include "cc/core/storage/flush_manifest.h"
#include "cc/core/table/table.h"

namespace dynemb {

// Reads (PrepareReads, Scan, counts) from any number of threads; other calls alone.
class RowLog {
 public:
  static constexpr int64_t kRecordHeaderBytes = 16;
  // Bytes that one call of the system writes, or reads in a scan.
  static constexpr int64_t kBlockBytes = int64_t{256} << 10;

  static int64_t SlotOf(Location location) { return static_cast<int64_t>(location >> 30); }
  // In the file.
  static int64_t OffsetOf(Location location) {
    return static_cast<int64_t>(location & ((uint64_t{1} << 30) - 1)) * 8;
  }
  static Location LocationOf(int64_t slot, int64_t offset) {
    return static_cast<uint64_t>(slot) << 30 | static_cast<uint64_t>(offset / 8);
  }

  struct File {
    std::string path;
    uint64_t number = 0;
    std::shared_ptr<WritableFile> writer;  // null: it is complete
    std::shared_ptr<const ReadableFile> reader;
    SchemaNumber schema_number = 0;
    int64_t record_bytes = 0;
    int64_t header_bytes = 0;
    int64_t bytes = 0;   // that have been written, with the header
    int64_t behind = 0;  // that are behind these on disk, since no flush has them
    int64_t live = 0;    // records
    int64_t disk_bytes() const { return bytes + behind; }
    bool damaged = false;
    bool unsynced = false;
  };

  // `least_file_bytes`: a file is ended when it has so many and a sixteenth of all live bytes.
  RowLog(std::shared_ptr<DiskFolder> folder, int64_t least_file_bytes);
  ~RowLog();
  RowLog(const RowLog&) = delete;
  RowLog& operator=(const RowLog&) = delete;

  // Later rows have this layout; nothing is written before there is one. Needs no memory.
  void SetLayout(SchemaNumber schema_number, int64_t row_bytes, std::string schema);

  // Appends records of these keys and rows, of row_bytes each. None of them is live yet. After an
  // error none has been written, as far as anybody can tell.
  Status Append(Span<const Key> keys, const char* rows, Location* locations);
  void Live(Location location);
  void Dead(Location location);

  // Reads of rows, which need nothing of the log once they are prepared: no record changes, and a
  // file that is removed can be read by who has it open.
  class Reads;
  // Of locations that ascend, each once.
  Reads PrepareReads(Span<const Location> locations) const;

  // Calls record(key, location, schema_number, row) for all records, live or not, file by file. A
  // record that is damaged is left out, or told to damaged(location). Errors: of the file system;
  // those of `record`.
  using RecordFunction = std::function<Status(Key key, Location location,
                                              SchemaNumber schema_number, const char* row)>;
  using DamagedFunction = std::function<void(Location location)>;
  Status Scan(const RecordFunction& record) const;
  // The same of one file.
  Status ScanFile(int64_t slot, const RecordFunction& record,
                  const DamagedFunction& damaged = nullptr) const;

  // Some of the records of a file.
  class Block {
   public:
    // From the file, which may have been removed since; needs nothing of the log.
    Status Read();
    // As of Scan.
    Status ForEachRecord(const RecordFunction& record,
                         const DamagedFunction& damaged = nullptr) const;
    int64_t slot() const { return slot_; }
    uint64_t number() const { return number_; }
    // Where it begins and ends in the file.
    int64_t begin() const { return begin_; }
    int64_t end() const { return end_; }

   private:
    friend class RowLog;
    int64_t slot_ = -1;
    uint64_t number_ = 0;
    SchemaNumber schema_number_ = 0;
    int64_t record_bytes_ = 0, begin_ = 0, end_ = 0;
    std::shared_ptr<const ReadableFile> reader_;
    std::vector<char> bytes_;
  };
  // The one of the file at a slot that begins at a byte, or at the first record; false: there is
  // none.
  bool BlockAt(int64_t slot, int64_t begin, Block* block) const;
  // Whether the file of a number is still at a slot.
  bool HasFile(int64_t slot, uint64_t number) const {
    return slot < slots() && Has(slot) && files_[slot]->number == number;
  }

  // The file, complete, with the smallest share of live bytes; -1: there is none that has many dead
  // ones.
  int64_t WorstFile() const;
  // What `scan` has found to be live of a file must be what is counted: kDataLoss.
  Status CheckLive(int64_t slot, int64_t records) const;
  // That WorstFile leaves it out.
  void SetDamaged(int64_t slot, bool damaged) { files_[slot]->damaged = damaged; }
  // Whether a file is complete and has dead records, which are those that are not live.
  bool HasDead(int64_t slot) const;
  // Removes a file that is complete, if it is there still, and none of its records is live.
  void RemoveIfDead(int64_t slot);
  int64_t slots() const { return static_cast<int64_t>(files_.size()); }
  bool Has(int64_t slot) const { return files_[slot] != nullptr; }

  // Removes all files.
  void Clear();

  // A file of a flush with rows of this schema, opened. kDataLoss: it is missing, damaged or cut
  // off.
  static Status OpenFile(DiskFolder* folder, const FlushedFile& of_flush, const TableSchema& schema,
                         std::shared_ptr<const File>* file);
  // Puts it at a slot that is free or new, and at any; other logs may have it as well. No record of
  // it is live yet.
  void AddFile(int64_t slot, const File& file);
  Status ShareFile(const File& file, int64_t* slot);
  int64_t record_bytes(int64_t slot) const { return files_[slot]->record_bytes; }
  int64_t records(int64_t slot) const;
  // Whether a file has a record there.
  bool HasRecordAt(Location location) const;
  static bool HasRecordAt(const File& file, int64_t offset);
  // While they are held, what was a file's slot becomes no other's.
  void HoldSlots(bool held) { slots_held_ = held; }
  // Of the file of a location. No other has had it, or will: with it, a location means one record
  // for ever.
  uint64_t NumberOf(Location location) const { return files_[SlotOf(location)]->number; }
  // What a flush that has records of this slot says of its file.
  FlushedFile FileAt(int64_t slot) const;
  // A file whose sync failed, of which an unknown part is on disk: it is not written
  // any more, and its rows must be written to others before a flush may name them.
  void SetUnsynced(uint64_t number);
  bool IsUnsynced(int64_t slot) const { return files_[slot]->unsynced; }

  int64_t live_bytes() const { return live_bytes_; }
  int64_t file_bytes() const { return file_bytes_; }
  int64_t files() const;

 private:
  Status FreeSlot(int64_t* slot) const;
  Status NewFile(int64_t* slot);
  // The file at `slot`, which is free or new.
  void Add(int64_t slot, std::shared_ptr<File> file);
  // No more is appended to the file that is written; if none of it is live, it is removed.
  void EndFile(bool remove_dead);
  void Remove(int64_t slot);
  static std::string Header(const File& file, int64_t row_bytes, const std::string& schema);
  // Of a record of the file of a number, with its header.
  static uint32_t Checksum(uint64_t number, std::string_view record);
  // Fills in the header of a record; false: the record is not what was written.
  static void Seal(const File& file, Key key, char* record);
  static bool IsWhole(uint64_t number, std::string_view record);

  const std::shared_ptr<DiskFolder> folder_;
  const int64_t least_file_bytes_;
  std::vector<std::shared_ptr<File>> files_;  // by slot; null: free
  int64_t current_ = -1;                      // the file that is written
  SchemaNumber schema_number_ = 0;
  int64_t row_bytes_ = 0;
  std::string schema_;
  int64_t live_bytes_ = 0, file_bytes_ = 0;
  bool slots_held_ = false;
};

class RowLog::Reads {
 public:
  // Calls row(i, schema_number, bytes) for locations[i], from any thread. kDataLoss: a record is
  // damaged; the message names it and its file.
  using RowFunction = std::function<void(int64_t i, SchemaNumber schema_number, const char* row)>;
  Status Run(const RowFunction& row) const;
  int64_t rows() const { return static_cast<int64_t>(offsets_.size()); }

 private:
  friend class RowLog;
  // Records that lie close together are read at once: [begin, end) of the offsets.
  struct Part {
    std::shared_ptr<const File> file;
    int64_t begin, end;
  };
  std::vector<int64_t> offsets_;
  std::vector<Part> parts_;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_STORAGE_ROW_LOG_H_
