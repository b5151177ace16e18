// The folders of one part of a table whose rows several processes or servers have.
//
// Each part has a folder of its own in each of the table's, since the processes of one machine
// share a file system. Its name, PROCESS-INDEX-of-PARTS and how keys are given to parts, says what
// rows it has: "process-0-of-2-by-hash". Rows of another number of parts, or of parts by another
// rule, are never opened, and never overlooked either.
#ifndef TF_DYNEMB_CC_CORE_STORAGE_FOLDER_OF_PART_H_
#define TF_DYNEMB_CC_CORE_STORAGE_FOLDER_OF_PART_H_

#include <string>
#include <vector>

#include "cc/core/base/file_system.h"
#include "cc/core/base/status.h"

namespace dynemb {

// The name of the part that has all rows, in the table's folders themselves.
inline constexpr char kWholeTable[] = "-";

// Makes `folders`, of a table, those of a part of it. kFailedPrecondition: the first one has a
// flush of a table with other parts. It need not be there. *others_flushed: it has a flush of
// another one of these parts.
Status UseFoldersOfPart(FileSystem* files, const std::string& part,
                        std::vector<std::string>* folders, bool* others_flushed);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_STORAGE_FOLDER_OF_PART_H_
