#include "cc/kernels/feed.h"

#include <algorithm>
#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "cc/core/base/crc32c.h"
#include "cc/core/snapshot/manifest.h"
#include "cc/kernels/stream_file_system.h"
#include "cc/kernels/table_resource.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/json_util.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/random.h"

namespace dynemb {
namespace {

using google::protobuf::ListValue;
using google::protobuf::Struct;
using google::protobuf::Value;
using tensorflow::Env;
using tensorflow::Tensor;

constexpr int kFormat = 1;
constexpr int kDigits = 12;  // of the number in a manifest's name
constexpr absl::string_view kPinned = "pinned-";
constexpr size_t kFirstRead = size_t{64} << 10, kLargestRead = size_t{16} << 20;

Status FromTensorFlow(const absl::Status& status) {
  return Status(static_cast<Code>(status.code()), std::string(status.message()));
}

absl::Status ReadOf(const tensorflow::RandomAccessFile& file, size_t offset, size_t bytes,
                    absl::string_view* got, char* out) {
// Later versions of TensorFlow have another one as well, earlier ones have only this.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  return file.Read(offset, bytes, got, out);
#pragma GCC diagnostic pop
}

template <typename... Args>
Status DataLoss(const Args&... args) {
  return Status(Code::kDataLoss, StrCat(args...));
}

// Without asking for the size first, which would be a second request where files are far away.
Status ReadAll(const std::string& path, std::string* content) {
  if (IsStream(path)) return FromTensorFlow(FetchFile(path, content));
  std::unique_ptr<tensorflow::RandomAccessFile> file;
  DYNEMB_RETURN_IF_ERROR(FromTensorFlow(Env::Default()->NewRandomAccessFile(path, &file)));
  content->clear();
  absl::Status status;
  for (size_t bytes = kFirstRead; status.ok(); bytes = std::min(2 * bytes, kLargestRead)) {
    const size_t offset = content->size();
    content->resize(offset + bytes);
    absl::string_view got;
    status = ReadOf(*file, offset, bytes, &got, &(*content)[offset]);
    if (got.data() != content->data() + offset) {
      std::copy(got.begin(), got.end(), content->begin() + static_cast<ptrdiff_t>(offset));
    }
    content->resize(offset + got.size());
  }
  return absl::IsOutOfRange(status) ? Status() : FromTensorFlow(status);
}

std::optional<int64_t> NumberOf(const std::string& text) {
  const bool is_number =
      text.size() == kDigits && text.find_first_not_of("0123456789") == std::string::npos;
  return is_number ? std::optional<int64_t>(std::stoll(text)) : std::nullopt;
}

// Of what follows "pinned-": <number>-<id of its state>.
std::optional<FeedPin> PinOf(const std::string& text) {
  FeedPin pin;
  const std::optional<int64_t> number = NumberOf(text.substr(0, kDigits));
  const bool is_pin = number && text.size() > kDigits && text[kDigits] == '-' &&
                      ParseId(text.substr(kDigits + 1), &pin.state).ok();
  pin.number = number.value_or(0);
  return is_pin ? std::optional<FeedPin>(pin) : std::nullopt;
}

std::string TextOf(int64_t number) {
  char text[32];
  std::snprintf(text, sizeof text, "%0*" PRId64, kDigits, number);
  return text;
}

// The fields of a JSON object. What is missing or of another kind reads as nothing, and is in
// status().
class Fields {
 public:
  Fields(const Struct& object, Status* status) : object_(object), status_(status) {}

  std::string Text(const char* name) {
    return Get(name, Value::kStringValue, "a string").string_value();
  }
  double Number(const char* name) {
    return Get(name, Value::kNumberValue, "a number").number_value();
  }
  // At least 0.
  int64_t Count(const char* name) {
    const double number = Number(name);
    if (!(number >= 0 && number <= 9e15)) Wrong(name, "a number of things");
    return status_->ok() ? static_cast<int64_t>(number) : 0;
  }
  // `otherwise` if there is no such field.
  bool Flag(const char* name, bool otherwise) {
    if (object_.fields().count(name) == 0) return otherwise;
    return Get(name, Value::kBoolValue, "true or false").bool_value();
  }
  const ListValue& List(const char* name) {
    return Get(name, Value::kListValue, "a list").list_value();
  }
  const Struct& Object(const char* name) {
    return Get(name, Value::kStructValue, "an object").struct_value();
  }
  uint64_t Id(const char* name) {
    const std::string text = Text(name);
    uint64_t id = 0;
    if (!text.empty() && status_->ok()) *status_ = ParseId(text, &id);
    return id;
  }
  std::optional<FeedPart> Part(const char* name) {
    const auto found = object_.fields().find(name);
    if (found != object_.fields().end() && found->second.has_null_value()) return std::nullopt;
    Fields fields(Object(name), status_);
    FeedPart part;
    part.snapshot = fields.Id("snapshot");
    part.base = fields.Id("base");
    part.rows = fields.Count("rows");
    part.erased = fields.Count("erased");
    return part;
  }

 private:
  const Value& Get(const char* name, Value::KindCase kind, const char* want) {
    const auto found = object_.fields().find(name);
    if (found != object_.fields().end() && found->second.kind_case() == kind) return found->second;
    Wrong(name, want);
    return Value::default_instance();
  }
  void Wrong(const char* name, const char* want) {
    if (status_->ok()) *status_ = DataLoss("a manifest whose field '", name, "' is not ", want);
  }

  const Struct& object_;
  Status* const status_;  // the first error
};

// By the name that NumPy gives it.
bool ParseWeightDType(const std::string& name, tensorflow::DataType* dtype) {
  static const auto* const others = new std::map<std::string, std::string>{
      {"float16", "half"}, {"float32", "float"}, {"float64", "double"}};
  const auto other = others->find(name);
  return tensorflow::DataTypeFromString(other == others->end() ? name : other->second, dtype) &&
         tensorflow::DataTypeCanUseMemcpy(*dtype);
}

void ParseWeights(const Struct& object, Generation* generation, Status* status) {
  Fields fields(object, status);
  const ListValue& names = fields.List("names");
  const ListValue& dtypes = fields.List("dtypes");
  const ListValue& shapes = fields.List("shapes");
  generation->weights_crc32c = static_cast<uint32_t>(fields.Count("crc32c"));
  generation->tables_alone = fields.Flag("tables_alone", names.values_size() == 0);
  if (names.values_size() != dtypes.values_size() || names.values_size() != shapes.values_size()) {
    *status = DataLoss("a manifest with other numbers of names, dtypes and shapes of weights");
    return;
  }
  for (int w = 0; w < names.values_size(); ++w) {
    FeedWeight weight;
    weight.name = names.values(w).string_value();
    std::vector<int64_t> dims;
    for (const Value& dim : shapes.values(w).list_value().values()) {
      dims.push_back(static_cast<int64_t>(dim.number_value()));
    }
    const bool is_known = ParseWeightDType(dtypes.values(w).string_value(), &weight.dtype) &&
                          tensorflow::TensorShapeUtils::MakeShape(dims, &weight.shape).ok();
    if (!is_known) {
      *status = DataLoss("a manifest with a weight '", Printable(weight.name),
                         "' of no dtype or shape of numbers");
      return;
    }
    generation->weights.push_back(std::move(weight));
  }
}

Status ParseManifest(const std::string& text, Generation* generation) {
  const size_t end = std::min(text.size(), text.find('\n'));
  const std::string line = text.substr(0, end);
  char checksum[16];
  std::snprintf(checksum, sizeof checksum, "\n%08" PRIx32 "\n", Crc32c(line));
  if (text.substr(end) != checksum) {
    return DataLoss("a manifest whose checksum is wrong; it is damaged");
  }
  Struct object;
  if (!google::protobuf::util::JsonStringToMessage(line, &object).ok()) {
    return DataLoss("a manifest that is no JSON");
  }
  Status status;
  Fields fields(object, &status);
  const int64_t format = fields.Count("format");
  if (status.ok() && format != kFormat) {
    return Status(Code::kUnimplemented, StrCat("format ", format, ", this version reads ", kFormat,
                                               "; update tf_dynemb here"));
  }
  generation->feed = fields.Text("feed");
  generation->number = fields.Count("number");
  generation->created_seconds = fields.Number("created_seconds");
  generation->folder = fields.Text("folder");
  generation->delta = fields.Part("delta");
  generation->full = fields.Part("full");
  ParseWeights(fields.Object("weights"), generation, &status);
  if (status.ok() && !generation->delta && !generation->full) {
    return DataLoss("a manifest without rows, want a delta or a full copy");
  }
  return status;
}

// An open file of TensorFlow's.
class EnvFile : public ReadableFile {
 public:
  EnvFile(std::unique_ptr<tensorflow::RandomAccessFile> file, uint64_t bytes)
      : file_(std::move(file)), bytes_(static_cast<int64_t>(bytes)) {}
  Status Size(int64_t* bytes) const override {
    *bytes = bytes_;
    return Status();
  }
  Status Read(int64_t offset, int64_t bytes, char* out) const override {
    absl::string_view got;
    const absl::Status status =
        ReadOf(*file_, static_cast<size_t>(offset), static_cast<size_t>(bytes), &got, out);
    if (absl::IsOutOfRange(status)) return DataLoss("the file ends early, it was cut off");
    if (!status.ok()) return FromTensorFlow(status);
    if (got.data() != out) std::memcpy(out, got.data(), got.size());
    return Status();
  }

 private:
  const std::unique_ptr<tensorflow::RandomAccessFile> file_;
  const int64_t bytes_;
};

class FileInMemory : public ReadableFile {
 public:
  explicit FileInMemory(const std::string* content) : content_(content) {}
  Status Size(int64_t* bytes) const override {
    *bytes = static_cast<int64_t>(content_->size());
    return Status();
  }
  Status Read(int64_t offset, int64_t bytes, char* out) const override {
    if (offset < 0 || bytes < 0 || offset + bytes > static_cast<int64_t>(content_->size())) {
      return DataLoss("the file ends early, it was cut off");
    }
    std::memcpy(out, content_->data() + offset, static_cast<size_t>(bytes));
    return Status();
  }

 private:
  const std::string* const content_;
};

class FilesToRead : public FileSystem {
 public:
  Status NewWritableFile(const std::string&, std::unique_ptr<WritableFile>*) override {
    return ReadOnly();
  }
  Status CreateFolder(const std::string&) override { return ReadOnly(); }
  Status List(const std::string&, std::vector<std::string>*) override { return ReadOnly(); }
  Status Remove(const std::string&) override { return ReadOnly(); }
  Status Rename(const std::string&, const std::string&) override { return ReadOnly(); }
  Status SyncFolder(const std::string&) override { return ReadOnly(); }
  Status SyncFile(const std::string&) override { return ReadOnly(); }
  Status Lock(const std::string&, std::unique_ptr<FileLock>*) override { return ReadOnly(); }

 private:
  static Status ReadOnly() { return Status(Code::kUnimplemented, "a follower only reads"); }
};

class EnvFiles : public FilesToRead {
 public:
  Status NewReadableFile(const std::string& path, std::unique_ptr<ReadableFile>* file) override {
    std::unique_ptr<tensorflow::RandomAccessFile> opened;
    uint64_t bytes;
    DYNEMB_RETURN_IF_ERROR(FromTensorFlow(Env::Default()->GetFileSize(path, &bytes)));
    DYNEMB_RETURN_IF_ERROR(FromTensorFlow(Env::Default()->NewRandomAccessFile(path, &opened)));
    *file = std::make_unique<EnvFile>(std::move(opened), bytes);
    return Status();
  }
};

class FilesInMemory : public FilesToRead {
 public:
  explicit FilesInMemory(std::map<std::string, std::string> content)
      : content_(std::move(content)) {}
  Status NewReadableFile(const std::string& path, std::unique_ptr<ReadableFile>* file) override {
    const auto found = content_.find(path);
    if (found == content_.end()) return Status(Code::kNotFound, StrCat(path, ": it is missing"));
    *file = std::make_unique<FileInMemory>(&found->second);
    return Status();
  }

 private:
  const std::map<std::string, std::string> content_;  // by path
};

}  // namespace

Status Feed::Look(std::vector<int64_t>* numbers, std::optional<FeedPin>* pinned) const {
  std::vector<std::string> names;
  numbers->clear();
  pinned->reset();
  const absl::Status listed = Env::Default()->GetChildren(JoinPath(path_, "generations"), &names);
  if (absl::IsNotFound(listed) && !is_stream()) return Status();
  if (!listed.ok()) return FromTensorFlow(listed);
  for (const std::string& name : names) {
    if (name.compare(0, kPinned.size(), kPinned) == 0) {
      const std::optional<FeedPin> pin = PinOf(name.substr(kPinned.size()));
      const auto order = [](const FeedPin& one) { return std::pair(one.number, one.state); };
      if (pin && (!*pinned || order(*pin) < order(**pinned))) *pinned = pin;
    } else if (const std::optional<int64_t> number = NumberOf(name)) {
      numbers->push_back(*number);
    }
  }
  std::sort(numbers->begin(), numbers->end());
  return Status();
}

bool Feed::is_stream() const { return IsStream(path_); }

Status Feed::WaitForNewer(int64_t number, int64_t* newest) const {
  const std::string place = JoinPath(path_, JoinPath("newer-than", StrCat(number)));
  std::string text;
  DYNEMB_RETURN_IF_ERROR(ReadAll(place, &text));
  const auto read = std::from_chars(text.data(), text.data() + text.size(), *newest);
  if (read.ec == std::errc() && *newest >= 0) return Status();
  return FailedPrecondition(place, ": got '", Printable(text), "', want a number; ",
                            "no feed is served there");
}

std::string Feed::ManifestPath(int64_t number) const {
  return JoinPath(path_, JoinPath("generations", TextOf(number)));
}

Status Feed::Read(int64_t number, Generation* generation) const {
  const std::string place = ManifestPath(number);
  std::string text;
  Status status = ReadAll(place, &text);
  if (status.code() == Code::kNotFound) {
    return Status(Code::kNotFound, StrCat(place, ": there is no generation ", number));
  }
  DYNEMB_RETURN_IF_ERROR(status);
  *generation = Generation();
  status = ParseManifest(text, generation);
  if (!status.ok()) return Status(status.code(), StrCat(place, ": got ", status.message()));
  generation->manifest = std::move(text);
  if (generation->number == number) return Status();
  return DataLoss(place, ": got generation ", generation->number, ", want ", number);
}

bool Feed::MayHold(const Generation& generation) const {
  std::string text;
  const Status read = ReadAll(ManifestPath(generation.number), &text);
  // Most often it is the same text, and need not be parsed.
  if (read.ok() && text == generation.manifest) return true;
  Generation there;
  const Status parsed = Read(generation.number, &there);
  if (!parsed.ok()) return parsed.code() != Code::kNotFound;
  return there.feed == generation.feed && there.state() == generation.state();
}

std::string Feed::Folder(const Generation& generation, const std::string& part) const {
  return JoinPath(path_, JoinPath("data", JoinPath(generation.folder, part)));
}

Status Feed::ReadWeights(const Generation& generation,
                         std::map<std::string, Tensor>* weights) const {
  const std::string place = Folder(generation, "weights");
  std::string content;
  const Status status = ReadAll(place, &content);
  if (status.code() == Code::kNotFound) return DataLoss(place, ": it is missing");
  DYNEMB_RETURN_IF_ERROR(status);
  if (Crc32c(content) != generation.weights_crc32c) {
    return DataLoss(place, ": its checksum is wrong; it is damaged");
  }
  size_t at = 0;
  for (const FeedWeight& weight : generation.weights) {
    Tensor tensor(weight.dtype, weight.shape);
    const size_t bytes = tensor.tensor_data().size();
    if (bytes > content.size() - at) return DataLoss(place, ": it ends early");
    std::memcpy(tensor.data(), content.data() + at, bytes);
    at += bytes;
    weights->emplace(weight.name, std::move(tensor));
  }
  return Status();
}

Status Feed::PutHeartbeat(const std::string& follower, const std::string& json) const {
  const std::string place = JoinPath(path_, JoinPath("followers", follower));
  const std::string draft = StrCat(place, ".", tensorflow::random::New64() % 1000000, ".new");
  Env* const env = Env::Default();
  // Where a file appears when it is whole.
  if (is_stream()) return FromTensorFlow(tensorflow::WriteStringToFile(env, place, json));
  absl::Status status = tensorflow::WriteStringToFile(env, draft, json);
  if (status.ok()) status = env->RenameFile(draft, place);
  if (!status.ok()) env->DeleteFile(draft).IgnoreError();
  return FromTensorFlow(status);
}

void Feed::RemoveHeartbeat(const std::string& follower) const {
  Env::Default()->DeleteFile(JoinPath(path_, JoinPath("followers", follower))).IgnoreError();
}

FileSystem* TensorFlowFiles() {
  static EnvFiles* const files = new EnvFiles();
  return files;
}

Status CopyToMemory(const std::string& folder, const std::function<Status()>& go_on,
                    std::unique_ptr<FileSystem>* files) {
  std::vector<std::string> names;
  std::map<std::string, std::string> content;
  DYNEMB_RETURN_IF_ERROR(FromTensorFlow(Env::Default()->GetChildren(folder, &names)));
  for (const std::string& name : names) {
    if (name == "LOCK") continue;  // of who has written the folder; it is empty
    const std::string path = JoinPath(folder, name);
    DYNEMB_RETURN_IF_ERROR(go_on());
    DYNEMB_RETURN_IF_ERROR(ReadAll(path, &content[path]));
  }
  *files = std::make_unique<FilesInMemory>(std::move(content));
  return Status();
}

}  // namespace dynemb
