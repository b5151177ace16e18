"""The protocol buffer rules of rules_proto, which in Bazel 4 are Bazel's own."""

proto_lang_toolchain = native.proto_lang_toolchain
proto_library = native.proto_library
