// What the operating system knows of the CPU and its memory, where OpenCL's answers are missing or wrong.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <sstream>

#include "common.h"

namespace anyxpu::sycl_driver {
namespace {

constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();

// A field of /proc/meminfo, in bytes; 0 where there is none.
uint64_t meminfo(const std::string& field) {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, field.size() + 1, field + ":") != 0) continue;
    return std::strtoull(line.c_str() + field.size() + 1, nullptr, 10) << 10;
  }
  return 0;
}

// The number in a cgroup file; kUnlimited where it is absent or says "max".
uint64_t cgroup_number(const std::string& path) {
  std::ifstream file(path);
  uint64_t value = 0;
  return file >> value ? value : kUnlimited;
}

struct CgroupFiles {
  std::string limit, usage;
};

// Of this process, version 2 (one "0::" line) or version 1 (the line of the memory controller). Inside a container the
// named directory is often not visible and the limit lies at the root of the mount.
std::vector<CgroupFiles> cgroup_files() {
  std::vector<CgroupFiles> found;
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), path = line.substr(second + 1);
    if (controllers.empty()) {
      for (const std::string& base : {std::string("/sys/fs/cgroup") + path, std::string("/sys/fs/cgroup")})
        found.push_back({base + "/memory.max", base + "/memory.current"});
    } else if (controllers.find("memory") != std::string::npos) {
      for (const std::string& base :
           {std::string("/sys/fs/cgroup/memory") + path, std::string("/sys/fs/cgroup/memory")})
        found.push_back({base + "/memory.limit_in_bytes", base + "/memory.usage_in_bytes"});
    }
  }
  return found;
}

}  // namespace

uint64_t physical_memory() {
  uint64_t bytes = meminfo("MemTotal");
  for (const CgroupFiles& files : cgroup_files()) bytes = std::min(bytes, cgroup_number(files.limit));
  return bytes;
}

uint64_t available_memory() {
  static const std::vector<CgroupFiles>* files = new std::vector<CgroupFiles>(cgroup_files());
  uint64_t bytes = meminfo("MemAvailable");
  for (const CgroupFiles& file : *files) {
    const uint64_t limit = cgroup_number(file.limit);
    if (limit == kUnlimited) continue;
    const uint64_t usage = cgroup_number(file.usage);
    bytes = std::min(bytes, usage < limit ? limit - usage : 0);
  }
  return bytes;
}

uint64_t untouched_memory(uint64_t handed_out) {
  std::ifstream file("/proc/self/statm");
  uint64_t size = 0, resident = 0;
  file >> size >> resident;
  resident *= static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return handed_out > resident ? handed_out - resident : 0;
}

// Not sysconf: it multiplies an L3 slice by the number of sockets' slices on some virtual machines.
uint64_t cache_of_level(int wanted) {
  uint64_t bytes = 0;
  int highest = 0;
  for (int index = 0; index < 8; ++index) {
    const std::string base = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index);
    std::ifstream level_file(base + "/level"), type_file(base + "/type"), size_file(base + "/size");
    int level = 0;
    std::string type;
    uint64_t size = 0;
    char unit = 0;
    if (!(level_file >> level) || !(type_file >> type) || !(size_file >> size) || type == "Instruction") continue;
    if (wanted == 0 ? level < highest : level != wanted) continue;
    size_file >> unit;
    highest = level;
    bytes = size << (unit == 'M' ? 20 : unit == 'K' ? 10 : 0);
  }
  return bytes;
}

uint32_t cpu_clock_mhz() {
  uint64_t khz = 0;
  if (std::ifstream("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq") >> khz) {
    return static_cast<uint32_t>(khz / 1000);
  }
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, 7, "cpu MHz") != 0) continue;
    return static_cast<uint32_t>(std::strtod(line.c_str() + line.find(':') + 1, nullptr));
  }
  return 0;
}

}  // namespace anyxpu::sycl_driver
