// What tables have done, in TensorFlow's monitoring registry, which servers export.
//
// /tf_dynemb/table/<counter> for each of TableCounters, a counter of label `table`, the table's
// name; /tf_dynemb/table/rows and /tf_dynemb/table/bytes, gauges of the same label;
// /tf_dynemb/all_to_all_bytes, a counter; /tf_dynemb/follower/..., of label `feed`: follower.h.
// Tables of one name are added up. Counters never fall:
// what a table has counted stays when it goes. They are read when somebody collects them, so that
// they cost a step nothing.
#ifndef TF_DYNEMB_CC_KERNELS_MONITORING_H_
#define TF_DYNEMB_CC_KERNELS_MONITORING_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace dynemb {

class TableResource;

// A table is in the registry from when it is made to when it goes. Thread-safe.
void AddToMonitoring(const TableResource* table);
void RemoveFromMonitoring(const TableResource* table);

// Registers numbers that `read` gives by the value of one label, for ever. Thread-safe.
using NumbersByLabel = std::map<std::string, int64_t>;
void RegisterCounter(const std::string& metric, const std::string& description, const char* label,
                     const std::function<NumbersByLabel()>& read);
void RegisterGauge(const std::string& metric, const std::string& description, const char* label,
                   const std::function<NumbersByLabel()>& read);

// Bytes that this process has sent to others.
void AddAllToAllBytes(int64_t bytes);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_KERNELS_MONITORING_H_
