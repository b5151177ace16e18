// Fingerprints are those of TensorFlow 2.21's tf.fingerprint(method="farmhash64"), for all ways in
// which strings of different lengths are read.
#include "cc/core/base/fingerprint.h"

#include <string>

#include "gtest/gtest.h"

namespace dynemb {
namespace {

TEST(FingerprintTest, AreTensorFlows) {
  std::string text;
  for (int i = 0; i < 4; ++i) {
    text +=
        "the quick brown fox jumps over the lazy dog, again and again, until both of them are "
        "tired. ";
  }
  const struct {
    size_t size;
    uint64_t fingerprint;
  } cases[] = {{0, 0x9ae16a3b2f90404fu},   {1, 0x6092b4796110f659u},   {2, 0x5c9f3a4eed516de8u},
               {3, 0x6132d02e3f9faf6au},   {4, 0x0de4d3fddebdb0bdu},   {7, 0x58994d61436ec088u},
               {8, 0xf1d0e3ca7ae0b8feu},   {15, 0x8da9bf49b6d7bc58u},  {16, 0x53fdfe1a208a5526u},
               {17, 0x9d20e2dbe4ab1185u},  {31, 0xef73e1b07c3da47du},  {32, 0xfa66ee2d801258cfu},
               {33, 0xd4c34435e5c9e3cdu},  {63, 0x1e8082d359f58098u},  {64, 0x20eb5a1c7359d174u},
               {65, 0xecd510fd7df02585u},  {127, 0x1474d556abae159fu}, {128, 0x96234512c168f80au},
               {129, 0x89a4df78ab8839f3u}, {200, 0x89cc3553e4567b6cu}, {300, 0xfcd6bd08a33d3068u}};
  for (const auto& [size, fingerprint] : cases) {
    EXPECT_EQ(Fingerprint(text.substr(0, size)), fingerprint) << size;
  }
  EXPECT_EQ(Fingerprint("iblgfbchenalmkfk"), Fingerprint("kgepkbmgpcjfdben"));
  EXPECT_NE(Fingerprint(std::string("\0", 1)), Fingerprint(""));
}

}  // namespace
}  // namespace dynemb
