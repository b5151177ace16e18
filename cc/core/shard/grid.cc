#include "cc/core/shard/grid.h"

#include <algorithm>
#include <set>

namespace dynemb {
namespace {

// The least whose square is no less.
int CeilOfRoot(int number) {
  int root = 1;
  while (root < number / root + (number % root != 0)) ++root;
  return root;
}

}  // namespace

Grid::Grid(int processes, int stages)
    : processes_(processes), columns_(stages == 1 ? processes : CeilOfRoot(processes)) {}

int Grid::Via(int from, int to) const {
  const int column = to % columns_;
  const int via = from / columns_ * columns_ + column;
  if (via < processes_) return via;
  const int full_rows = processes_ / columns_;
  return column % full_rows * columns_ + column;  // not one row for all of them
}

std::vector<int> Grid::Row(int process) const {
  std::set<int> row;
  for (int to = 0; to < columns_; ++to) row.insert(Via(process, to));
  return {row.begin(), row.end()};
}

std::vector<int> Grid::Senders(int process) const {
  std::vector<int> senders;
  for (int from = 0; from < processes_; ++from)
    if (Via(from, process) == process) senders.push_back(from);
  return senders;
}

std::vector<int> Grid::Column(int process) const {
  std::vector<int> column;
  for (int other = process % columns_; other < processes_; other += columns_)
    if (other != process) column.push_back(other);
  column.push_back(process);
  return column;
}

std::vector<int> Grid::Peers(int process) const {
  std::set<int> peers;
  for (const std::vector<int>& some : {Row(process), Senders(process), Column(process)})
    peers.insert(some.begin(), some.end());
  peers.erase(process);
  return {peers.begin(), peers.end()};
}

}  // namespace dynemb
