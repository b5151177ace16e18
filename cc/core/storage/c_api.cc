#include "cc/core/storage/c_api.h"

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cc/core/base/c_answer.h"
#include "cc/core/base/file_system.h"
#include "cc/core/base/line_text.h"
#include "cc/core/storage/compact.h"
#include "cc/core/storage/flushed_folders.h"

struct dynemb_folders {
  std::unique_ptr<dynemb::FlushedFolders> folders;
  std::string report;
};

namespace dynemb {
namespace {

std::vector<std::string> PathsOf(std::string_view lines) {
  std::vector<std::string> paths;
  while (!lines.empty()) paths.emplace_back(Take(&lines, '\n'));
  return paths;
}

std::string ReportOf(const FlushedFolders& folders) {
  const FlushManifest& manifest = folders.manifest();
  std::string report = StrCat("step ", manifest.step, "\nfolders ", manifest.folders, "\nname ",
                              manifest.name, "\n");
  for (const FlushedFolders::File& file : folders.files()) {
    const char* const kind = file.kind == DiskFolder::Kind::kIndex ? " index " : " rows ";
    report += StrCat("file ", file.shard, kind, file.bytes, " ", file.rows, " ", file.records, " ",
                     file.record_bytes, " ", file.path, "\n");
  }
  for (const FlushedFolders::Damage& damage : folders.damages()) {
    report += StrCat("damage ", damage.offset, " ", damage.path, "\t", damage.what, "\n");
  }
  return report + "schema\n" + manifest.schema().ToText();
}

}  // namespace
}  // namespace dynemb

using dynemb::AnswerC;
using dynemb::Status;

// Nothing else of the op library is visible from outside.
#pragma GCC visibility push(default)
extern "C" {

int dynemb_folders_open(const char* folders, dynemb_folders** opened) {
  return AnswerC([&] {
    auto made = std::make_unique<dynemb_folders>();
    DYNEMB_RETURN_IF_ERROR(dynemb::FlushedFolders::Open(dynemb::PosixFileSystem(),
                                                        dynemb::PathsOf(folders), &made->folders));
    *opened = made.release();
    return Status();
  });
}

int dynemb_folders_report(dynemb_folders* opened, const char** report) {
  return AnswerC([&] {
    opened->report = dynemb::ReportOf(*opened->folders);
    *report = opened->report.c_str();
  });
}

int dynemb_folders_verify(dynemb_folders* opened, int64_t file) {
  return AnswerC([&] { opened->folders->Verify(static_cast<size_t>(file)); });
}

void dynemb_folders_close(dynemb_folders* opened) { delete opened; }

int dynemb_folders_compact(const char* folders) {
  return AnswerC(
      [&] { return dynemb::CompactFolders(dynemb::PosixFileSystem(), dynemb::PathsOf(folders)); });
}

}  // extern "C"
#pragma GCC visibility pop
