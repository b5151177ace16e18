// What the files of op schemas have in common. They say what TensorFlow sees of the ops: names,
// types, shapes, documentation. No logic; the kernels are in the file of the same name in
// cc/kernels.
//
// Conventions. `tables` are the shards of one variable, all of one schema. `keys` are int64 of any
// shape (...); rows that go with them have shape (..., dim). `shard_ids`, int32, has one shard
// number per key in the order of the flattened keys, or is empty where there is one table. `now` is
// a scalar that goes to the meta field `used` of the rows that are written, where the schema has
// one.
#ifndef TF_DYNEMB_CC_OPS_OP_SCHEMAS_H_
#define TF_DYNEMB_CC_OPS_OP_SCHEMAS_H_

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

#define DYNEMB_VALUE_TYPES "{float, double, half, bfloat16, int8, int32, int64}"
#define DYNEMB_TRAINED_TYPES "{float, double, half, bfloat16}"

#endif  // TF_DYNEMB_CC_OPS_OP_SCHEMAS_H_
