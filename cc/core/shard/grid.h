// Grid: on which way items go from one process to another, in one stage or in two.
//
// In one stage every process sends to every other one, N - 1 messages each. In two stages the
// processes are the cells of a grid, row by row, of about √N columns: a process sends what is for
// others first along its row, to the one in the receiver's column, which sends it on along that
// column. So each sends and gets about 2 √N messages, and most items travel twice. One stage is a
// grid of a single row.
//
// The last row may have fewer cells. What its processes send to the columns that it does not reach
// goes through a process of another row there, so any number of processes has its grid.
#ifndef TF_DYNEMB_CC_CORE_SHARD_GRID_H_
#define TF_DYNEMB_CC_CORE_SHARD_GRID_H_

#include <vector>

namespace dynemb {

class Grid {
 public:
  // `stages`: 1 or 2.
  Grid(int processes, int stages);

  int processes() const { return processes_; }
  // Through which process items go: one of the column of `to`. It may be either of them.
  int Via(int from, int to) const;
  // The processes through which items from this one go, itself among them.
  std::vector<int> Row(int process) const;
  // The processes whose items for its column go through this one, itself among them, ascending.
  std::vector<int> Senders(int process) const;
  // The processes of its column: others ascending, itself last.
  std::vector<int> Column(int process) const;
  // The processes that it sends to or gets from, ascending. No two do so in both stages.
  std::vector<int> Peers(int process) const;

 private:
  const int processes_;
  const int columns_;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_SHARD_GRID_H_
