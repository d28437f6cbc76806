// One counter an operator, for every operator that was ever called.
#include <memory>
#include <mutex>
#include <unordered_map>

#include "shim/ops.h"

namespace anyxpu {
namespace {

struct Counters {
  std::mutex mutex;
  std::unordered_map<std::string, std::unique_ptr<OpCounter>> by_name;
};

// Never destroyed: operators may run while the process ends.
Counters& counters() {
  static auto* all = new Counters;
  return *all;
}

}  // namespace

OpCounter& op_counter(std::string_view name) {
  auto& all = counters();
  std::lock_guard<std::mutex> guard(all.mutex);
  auto& slot = all.by_name[std::string(name)];
  if (!slot) slot = std::make_unique<OpCounter>();
  return *slot;
}

void for_each_counter(const std::function<void(const std::string&, OpCounter&)>& visit) {
  auto& all = counters();
  std::lock_guard<std::mutex> guard(all.mutex);
  for (auto& [name, counter] : all.by_name) visit(name, *counter);
}

}  // namespace anyxpu
