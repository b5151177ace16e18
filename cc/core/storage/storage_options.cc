#include "cc/core/storage/storage_options.h"

#include <sstream>
#include <string>

namespace dynemb {

Status StorageOptions::Parse(const std::string& text, FileSystem* files, StorageOptions* options) {
  std::istringstream in(text);
  std::string host, owner_word, owner, disk, path;
  in >> host >> options->max_bytes >> owner_word >> owner >> disk;
  std::getline(in >> std::ws, path);
  if (!in || host != "host" || owner_word != "owner" || disk != "disk" || path.empty() ||
      options->max_bytes <= 0) {
    return InvalidArgument("storage: got '", Printable(text),
                           "', want 'host BYTES owner WORD disk PATH'");
  }
  return DiskFolder::OpenFor(files, path, owner, &options->disk);
}

StorageOptions StorageOptions::OfShard(int64_t shards) const {
  StorageOptions of_shard = *this;
  if (max_bytes >= 0) of_shard.max_bytes = max_bytes / shards;
  if (max_rows >= 0) of_shard.max_rows = max_rows / shards;
  return of_shard;
}

}  // namespace dynemb
