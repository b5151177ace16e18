/* The folders of tables beyond memory for callers that know no C++: what `tf-dynemb storage` calls.

   `folders` are paths, each after a line break but the first. Functions return 0, or the code of a
   Status; dynemb_error() (cc/core/snapshot/c_api.h) is then its message. A handle belongs to one
   thread at a time. */
#ifndef TF_DYNEMB_CC_CORE_STORAGE_C_API_H_
#define TF_DYNEMB_CC_CORE_STORAGE_C_API_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dynemb_folders dynemb_folders;

/* FlushedFolders (flushed_folders.h). */
int dynemb_folders_open(const char* folders, dynemb_folders** opened);
/* What has been found until now; it stays until the next call with these:
     step <number>
     folders <number>
     name <of the table>, or nothing if that is not known
     file <shard> index|rows <bytes> <rows> <records> <record_bytes> <path>
     damage <offset> <path><tab><what>
     schema, and after this line the text of the schema (cc/core/table/row_layout.h) */
int dynemb_folders_report(dynemb_folders* opened, const char** report);
/* Reads a file, counted from 0 as in the report. */
int dynemb_folders_verify(dynemb_folders* opened, int64_t file);
void dynemb_folders_close(dynemb_folders* opened);

/* CompactFolders (compact.h). */
int dynemb_folders_compact(const char* folders);

#ifdef __cplusplus
}
#endif

#endif /* TF_DYNEMB_CC_CORE_STORAGE_C_API_H_ */
