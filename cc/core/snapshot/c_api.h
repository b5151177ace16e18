/* Snapshots for callers that know no C++: what the Python package's reader and writer of snapshots
   call.

   Functions return 0, or the code of a Status; dynemb_error() is then its message, until the next
   failure on the same thread. A handle belongs to one thread at a time. Sizes are checked against
   what the snapshot holds; pointers are the caller's duty. */
#ifndef TF_DYNEMB_CC_CORE_SNAPSHOT_C_API_H_
#define TF_DYNEMB_CC_CORE_SNAPSHOT_C_API_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dynemb_reader dynemb_reader;
typedef struct dynemb_writer dynemb_writer;

/* Packed rows: keys (rows,), values (rows, value_bytes), slots (rows, slots_bytes), meta (rows,
   meta_bytes); of a table that keeps them the strings of the keys, one after the other, and the
   length of each, otherwise null; and the keys that a delta erases. */
typedef struct {
  int64_t table;
  int64_t rows;
  const int64_t* keys;
  const char* values;
  const char* slots;
  const char* meta;
  const int64_t* string_lengths;
  const char* strings;
  int64_t erased;
  const int64_t* erased_keys;
  int32_t done; /* there was no more */
} dynemb_block;

const char* dynemb_error(void);

/* Bytes per row of value, slots and meta of a schema's text, which is checked. */
int dynemb_row_bytes(const char* schema, int64_t bytes[3]);
/* Writes the slots of a new row. */
int dynemb_initial_slots(const char* schema, char* slots);

/* The keys of strings, given as in a block. */
int dynemb_fingerprints(int64_t n, const int64_t* lengths, const char* strings, int64_t* keys);

/* CRC-32C, the checksum of all files. */
uint32_t dynemb_crc32c(const char* data, int64_t bytes);

int dynemb_reader_open(const char* folder, dynemb_reader** reader);
/* The manifest's text (FORMAT.md), as long as the reader lives. */
const char* dynemb_reader_manifest(const dynemb_reader* reader);
int dynemb_reader_verify(const dynemb_reader* reader);
/* Goes back to the first block, of one table or (-1) of all. */
void dynemb_reader_rewind(dynemb_reader* reader, int64_t table);
/* The next block; its pointers are good until the next call with this reader. */
int dynemb_reader_next(dynemb_reader* reader, dynemb_block* block);
void dynemb_reader_close(dynemb_reader* reader);

int dynemb_writer_open(const char* folder, dynemb_writer** writer);
int dynemb_writer_add_table(dynemb_writer* writer, const char* name, const char* schema);
/* Adds the rows and erased keys of a block to its table. */
int dynemb_writer_add(dynemb_writer* writer, const dynemb_block* block);
/* Atomically commits the snapshot. `base`: the id of the snapshot that it is a delta of, or "". */
int dynemb_writer_commit(dynemb_writer* writer, const char* base);
/* Frees the writer; without a commit, removes what was written. */
void dynemb_writer_close(dynemb_writer* writer);

#ifdef __cplusplus
}
#endif

#endif /* TF_DYNEMB_CC_CORE_SNAPSHOT_C_API_H_ */
