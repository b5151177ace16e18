// Feed: the generations that a trainer publishes, as a server reads them, on any of TensorFlow's
// file systems. tf_dynemb/serving/feed.py writes them and says what the files are.
#ifndef TF_DYNEMB_CC_KERNELS_FEED_H_
#define TF_DYNEMB_CC_KERNELS_FEED_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cc/core/base/file_system.h"
#include "cc/core/base/status.h"
#include "tensorflow/core/framework/tensor.h"

namespace dynemb {

// A snapshot of a generation.
struct FeedPart {
  uint64_t snapshot = 0;
  uint64_t base = 0;  // of a delta: the state that it continues
  int64_t rows = 0;
  int64_t erased = 0;
};

// A dense weight of a generation.
struct FeedWeight {
  std::string name;
  tensorflow::DataType dtype = tensorflow::DT_INVALID;
  tensorflow::TensorShape shape;
};

// What a manifest says.
struct Generation {
  std::string feed;
  int64_t number = 0;
  double created_seconds = 0;  // since 1970-01-01 UTC, by the trainer's clock
  std::string folder;
  std::optional<FeedPart> delta, full;  // one of the two at least
  std::vector<FeedWeight> weights;      // one after the other in the file `weights`
  bool tables_alone = false;            // the publisher has no model: followers keep their weights
  uint32_t weights_crc32c = 0;
  std::string manifest;  // as it was read

  // The state of the tables, which the delta of the next generation continues.
  uint64_t state() const { return (delta ? delta : full)->snapshot; }
};

// The generation that followers of a feed stay at.
struct FeedPin {
  int64_t number = 0;
  uint64_t state = 0;  // of that generation: another feed in the folder has the number as well
};

class Feed {
 public:
  explicit Feed(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  // The numbers of the generations that there are, ascending, and of the one that followers stay
  // at, if there is one; none if there is no such folder, which of a stream is an error.
  Status Look(std::vector<int64_t>* numbers, std::optional<FeedPin>* pinned) const;
  bool is_local() const { return path_.find("://") == std::string::npos; }
  // Whether another machine serves it (stream_file_system.cc). Then it tells its newest generation
  // when that is after `number`, or whatever it is after a second.
  bool is_stream() const;
  Status WaitForNewer(int64_t number, int64_t* newest) const;
  // kDataLoss: damaged; kNotFound: it has been removed; kUnimplemented: of a later format.
  Status Read(int64_t number, Generation* generation) const;
  // False: there is none of that number, or, since the feed was begun anew, another one. True, too,
  // if it cannot be read.
  bool MayHold(const Generation& generation) const;
  // The folder of a part of a generation, "delta" or "full".
  std::string Folder(const Generation& generation, const std::string& part) const;
  // By name. kDataLoss: damaged or missing.
  Status ReadWeights(const Generation& generation,
                     std::map<std::string, tensorflow::Tensor>* weights) const;

  // Tells the publisher how a follower is, in one step; and that it is gone.
  Status PutHeartbeat(const std::string& follower, const std::string& json) const;
  void RemoveHeartbeat(const std::string& follower) const;

 private:
  std::string ManifestPath(int64_t number) const;

  const std::string path_;
};

// Files of TensorFlow's file systems, to be read. Whatever writes is kUnimplemented.
FileSystem* TensorFlowFiles();

// A copy of the files of a folder in memory, of which nothing can be removed or overwritten; paths
// are those that they have now. Calls `go_on` before each file; its error ends it.
Status CopyToMemory(const std::string& folder, const std::function<Status()>& go_on,
                    std::unique_ptr<FileSystem>* files);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_KERNELS_FEED_H_
