// StreamFileSystem: feeds of other machines as one of TensorFlow's file systems. feed://host:port
// is the folder that `tf-dynemb feed` or Publisher(stream=...) serves there (tf_dynemb_cli/
// feed_server.py), feeds://host:port the same over TLS. So followers, in C++ and in Python, read it
// as they read any other folder.
//
// A file is read by GET and a range of bytes, a folder is listed by GET of its path with a slash
// (a name each line), a follower's heartbeat is a PUT and a DELETE. All else is kUnimplemented.
// A file appears when it is whole.
//
// TF_DYNEMB_FEED_SECRET, an environment variable, is sent with each request; TF_DYNEMB_FEED_CA is a
// file of certificates to trust instead of the machine's.
#ifndef TF_DYNEMB_CC_KERNELS_STREAM_FILE_SYSTEM_H_
#define TF_DYNEMB_CC_KERNELS_STREAM_FILE_SYSTEM_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace dynemb {

// Whether a path is of this file system.
bool IsStream(absl::string_view path);

// The whole of a file. One of up to 64 MiB is fetched into the memory that it stays in:
// TensorFlow's interface reads into what the caller has made before it knows how much there is.
absl::Status FetchFile(const std::string& path, std::string* content);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_KERNELS_STREAM_FILE_SYSTEM_H_
