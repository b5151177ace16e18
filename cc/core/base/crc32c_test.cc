// CRC-32C: both implementations against published values and against the definition, bit by bit.
#include "cc/core/base/crc32c.h"

#include <cstdint>
#include <random>
#include <string>
#include <string_view>

#include "gtest/gtest.h"

namespace dynemb {
namespace {

using Checksum = uint32_t (*)(std::string_view, uint32_t);

// Polynomial division, one bit at a time.
uint32_t BitByBit(std::string_view data, uint32_t crc) {
  crc = ~crc;
  for (const char c : data) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) {
      const bool carry = (crc & 1) != 0;
      crc >>= 1;
      if (carry) crc ^= 0x82f63b78u;  // 0x1edc6f41 with its bits in reverse order
    }
  }
  return ~crc;
}

class Crc32cTest : public ::testing::TestWithParam<Checksum> {
 protected:
  static uint32_t Of(std::string_view data, uint32_t crc = 0) { return GetParam()(data, crc); }
};
INSTANTIATE_TEST_SUITE_P(All, Crc32cTest, ::testing::Values(Crc32c, Crc32cByTables, BitByBit));

// RFC 3720, appendix B.4, whose tables have the bytes of the checksum from the lowest on; the last
// line is the usual check value of catalogues of CRCs.
TEST_P(Crc32cTest, HasThePublishedValues) {
  std::string up, down;
  for (char i = 0; i < 32; ++i) up.push_back(i), down.insert(down.begin(), i);
  std::string read(48, '\0');  // an iSCSI SCSI Read (10) command
  read[0] = 0x01, read[1] = '\xc0', read[16] = 0x14, read[22] = 0x04, read[27] = 0x14;
  read[31] = 0x18, read[32] = 0x28, read[40] = 0x02;
  EXPECT_EQ(Of(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Of(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(Of(up), 0x46dd794eu);
  EXPECT_EQ(Of(down), 0x113fdb5cu);
  EXPECT_EQ(Of(read), 0xd9963a56u);
  EXPECT_EQ(Of("123456789"), 0xe3069283u);
  EXPECT_EQ(Of(""), 0u);
}

// All lengths around the 8 bytes that are taken at once, from all places of a word, in two parts.
TEST_P(Crc32cTest, IsTheDefinitionForAllLengthsAndChains) {
  std::mt19937_64 random(7);
  std::string data(200, '\0');
  for (char& c : data) c = static_cast<char>(random());
  for (size_t start = 0; start < 9; ++start) {
    for (size_t size = 0; size < 80; ++size) {
      const std::string_view part = std::string_view(data).substr(start, size);
      const uint32_t want = BitByBit(part, 0);
      ASSERT_EQ(Of(part), want) << start << " " << size;
      const size_t cut = random() % (size + 1);
      ASSERT_EQ(Of(part.substr(cut), Of(part.substr(0, cut))), want) << size << " cut at " << cut;
    }
  }
}

TEST_P(Crc32cTest, ChangesWithEveryBit) {
  std::string data(100, 'x');
  const uint32_t before = Of(data);
  for (size_t bit = 0; bit < data.size() * 8; ++bit) {
    data[bit / 8] = static_cast<char>(data[bit / 8] ^ 1 << bit % 8);
    EXPECT_NE(Of(data), before) << bit;
    data[bit / 8] = static_cast<char>(data[bit / 8] ^ 1 << bit % 8);
  }
}

}  // namespace
}  // namespace dynemb
