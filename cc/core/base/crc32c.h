// CRC-32C, the checksum of every block on disk: polynomial 0x1edc6f41 (Castagnoli, Bräuer,
// Herrmann: "Optimization of cyclic redundancy-check codes with 24 and 32 parity bits", 1993), as
// in iSCSI (RFC 3720, appendix B.4, has test vectors).
#ifndef TF_DYNEMB_CC_CORE_BASE_CRC32C_H_
#define TF_DYNEMB_CC_CORE_BASE_CRC32C_H_

#include <cstdint>
#include <string_view>

namespace dynemb {

// The checksum of what had checksum `crc` (0: nothing) followed by `data`.
uint32_t Crc32c(std::string_view data, uint32_t crc = 0);

// The same without the processor's own instruction, for those that have none.
uint32_t Crc32cByTables(std::string_view data, uint32_t crc = 0);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_BASE_CRC32C_H_
