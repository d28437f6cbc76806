// Programs with constants or variables of their own, on a device whose driver keeps those of several programs in one
// piece of memory: the capture mode of the simulation ends the process where such a piece is written. What is larger
// than the largest that is pooled has memory of its own, and so the sections that hold them are made as large.
#pragma once

#include <elf.h>

#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace anyxpu::simulate {

// The driver pools what has up to 2 MiB.
constexpr uint64_t kNotPooled = (2u << 20) + (64u << 10);

inline bool is_constants(std::string_view section) {
  return section.starts_with(".data.const") || section.starts_with(".data.global") ||
         section.starts_with(".bss.const") || section.starts_with(".bss.global");
}

// The native code with its constants and variables in sections of kNotPooled; empty where it has none, or is no ELF
// file of 64 bits.
inline std::vector<uint8_t> with_own_memory(const uint8_t* code, size_t bytes) {
  Elf64_Ehdr header{};
  if (bytes < sizeof(header)) return {};
  std::memcpy(&header, code, sizeof(header));
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_shentsize != sizeof(Elf64_Shdr) || header.e_shoff > bytes ||
      header.e_shnum > (bytes - header.e_shoff) / sizeof(Elf64_Shdr) || header.e_shstrndx >= header.e_shnum)
    return {};
  std::vector<Elf64_Shdr> sections(header.e_shnum);
  std::memcpy(sections.data(), code + header.e_shoff, sections.size() * sizeof(Elf64_Shdr));
  const Elf64_Shdr& names = sections[header.e_shstrndx];
  if (names.sh_offset > bytes || names.sh_size > bytes - names.sh_offset) return {};

  std::vector<uint8_t> grown(code, code + bytes);
  bool changed = false;
  for (Elf64_Shdr& section : sections) {
    if (section.sh_name >= names.sh_size || section.sh_size == 0 || section.sh_size >= kNotPooled) continue;
    const char* name = reinterpret_cast<const char*>(code + names.sh_offset + section.sh_name);
    if (!is_constants({name, strnlen(name, names.sh_size - section.sh_name)})) continue;
    if (section.sh_type != SHT_NOBITS) {
      if (section.sh_offset > bytes || section.sh_size > bytes - section.sh_offset) return {};
      constexpr size_t kAlignment = 64;
      const size_t at = (grown.size() + kAlignment - 1) / kAlignment * kAlignment;
      grown.resize(at + kNotPooled);
      std::memcpy(grown.data() + at, code + section.sh_offset, section.sh_size);
      section.sh_offset = at;
    }
    section.sh_size = kNotPooled;
    changed = true;
  }
  if (!changed) return {};
  std::memcpy(grown.data() + header.e_shoff, sections.data(), sections.size() * sizeof(Elf64_Shdr));
  return grown;
}

}  // namespace anyxpu::simulate
