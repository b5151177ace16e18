// TensorFlow's monitoring registry, which has the counters of tables and of the thread that follows
// a feed: as a text that Prometheus reads, and in short.
#ifndef TF_DYNEMB_EXAMPLES_ONLINE_SERVER_METRICS_H_
#define TF_DYNEMB_EXAMPLES_ONLINE_SERVER_METRICS_H_

#include <string>

#include "examples/online/server/json_tensors.h"

namespace model_server {

// All of the registry in Prometheus' text format. Names are as TensorFlow Serving gives them:
// /tf_dynemb/follower/generation is :tf_dynemb:follower:generation.
std::string PrometheusText();

// What the model of this process follows: feed, generation (null: as exported), newest,
// lag_seconds, rows, erased, full_copies, errors. null if it does not follow. One model per
// process.
Json FollowerStatus();

// Counts a request and how long it took, by the HTTP status of the reply.
void CountRequest(int status, double microseconds);

}  // namespace model_server

#endif  // TF_DYNEMB_EXAMPLES_ONLINE_SERVER_METRICS_H_
