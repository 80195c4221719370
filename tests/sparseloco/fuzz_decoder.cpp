// Decodes a stranger's records in memory of exactly their size: built with AddressSanitizer, it stops at the first access
// outside. What one instruction set accepts, all must, and then it is applied too.
//
// Coverage-guided, with libFuzzer (the folder of new finds first):
//   clang++ -std=c++17 -O1 -g -ffp-contract=off -DLIBFUZZER -fsanitize=fuzzer,address,undefined -Icsrc/kernels
//       csrc/kernels/*.cpp tests/sparseloco/fuzz_decoder.cpp -o fuzz_decoder
//   ./fuzz_decoder -max_len=492 FOUND tests/sparseloco/corpus
// Without it, main() replays the corpus and mutates it by itself. Arguments: number of cases, then corpus files. Prints
// how many were accepted and refused.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <vector>

#include "murmur_codec.h"

// A layout: its tensors' sizes, and its regions (how wide a row of blocks is tells which of them are full).
struct Layout {
    std::vector<uint64_t> elements;
    std::vector<murmur_region> regions;
};

// tests/sparseloco/test_wire.py, FUZZ_SHAPES: matrix (70, 67), scalar (), vector (5,), k = 64.
static const Layout RAGGED = {{70 * 67, 1, 5},
                              {{0, 0, 0, 67, 1, 1, 64, 64, 64, 0, 0},
                               {0, 1, 64, 67, 1, 1, 64, 3, 3, 0, 0},
                               {0, 2, 64 * 67, 67, 1, 1, 6, 64, 6, 0, 0},
                               {0, 3, 64 * 67 + 64, 67, 1, 1, 6, 3, 1, 0, 0},
                               {1, 4, 0, 1, 1, 1, 1, 1, 1, 0, 0},
                               {2, 5, 0, 5, 1, 1, 1, 5, 1, 0, 0}}};
// WIDE_SHAPES: matrix (64, 384), six full blocks beside each other: what the decoder takes several of at once.
static const Layout WIDE = {{64 * 384}, {{0, 0, 0, 384, 1, 6, 64, 64, 64, 0, 0}}};

typedef std::vector<uint8_t> Bytes;

// A plan of a layout. Where each region's records begin follows from the library itself: where those before it end.
struct Decoder {
    Layout layout;
    murmur_plan plan;

    explicit Decoder(const Layout &given) : layout(given) {
        void *scratch = std::aligned_alloc(64, (murmur_scratch_bytes() + 63) / 64 * 64);
        plan = murmur_plan{layout.regions.data(), 0, layout.elements.data(), layout.elements.size(), 0,
                           scratch, murmur_scratch_bytes(), 1, 0};
        uint64_t at = 0;
        for (murmur_region &region : layout.regions) {
            region.record = at;
            plan.num_regions += 1;
            const Bytes none(4096);
            for (plan.records_bytes = at + 1;; ++plan.records_bytes) {  // the smallest that is not refused as too small
                std::vector<uint64_t> counts(layout.elements.size() * 256);
                const uint8_t *records = none.data();
                int32_t status;
                uint64_t fault;
                if (murmur_validate(&plan, &records, 1, counts.data(), &status, &fault) != MURMUR_BAD_PLAN) break;
            }
            at = plan.records_bytes;
        }
    }
    Decoder(const Decoder &) = delete;
    ~Decoder() { std::free(plan.scratch); }

    // What every instruction set says of these records, as two payloads of one call; stops the program when two of them,
    // or the two payloads, or the two decoders, or the two places of the result differ.
    int decode(const Bytes &records) {
        const uint8_t *two[] = {records.data(), records.data()};
        const uint64_t tensors = layout.elements.size();
        const std::vector<float> weights(2 * tensors, 1.0f);
        int first = -1;
        std::vector<uint64_t> first_counts;
        std::vector<float> first_out;
        for (plan.isa = 0; plan.isa < 3; ++plan.isa) {
            if (!murmur_supports(plan.isa)) continue;
            std::vector<uint64_t> counts(2 * tensors * 256);
            int32_t status[2];
            uint64_t fault[2];
            require(murmur_validate(&plan, two, 2, counts.data(), status, fault) == MURMUR_OK, "the plan is refused");
            require(status[0] == status[1] && fault[0] == fault[1], "payloads differ");
            const bool equal = std::equal(counts.begin(), counts.begin() + tensors * 256, counts.begin() + tensors * 256);
            require(status[0] != MURMUR_OK || equal, "counts of payloads differ");
            // A tensor begins at a whole line: where results may go past the caches.
            std::vector<float *> theta, apart;
            uint64_t room = 0;
            for (uint64_t size : layout.elements) room += (size + 15) / 16 * 16;
            float *memory = static_cast<float *>(std::aligned_alloc(64, 8 * room));
            std::fill(memory, memory + 2 * room, 1.0f);
            float *at = memory;
            for (uint64_t size : layout.elements) theta.push_back(at), apart.push_back(at + room), at += (size + 15) / 16 * 16;
            for (float *const *out : {apart.data(), theta.data()})
                require(murmur_aggregate(&plan, two, 2, weights.data(), MURMUR_MEAN, theta.data(), out) == status[0],
                        "aggregate and validate differ");
            std::vector<float> found(memory, memory + room);
            if (first < 0) first = status[0], first_counts = counts, first_out = found;
            require(status[0] == first, "instruction sets differ");
            if (first == MURMUR_OK) {
                require(counts == first_counts, "counts differ");
                require(!std::memcmp(found.data(), first_out.data(), 4 * room), "sums differ");
                require(!std::memcmp(memory, memory + room, 4 * room), "sums of two places differ");
            }
            std::free(memory);
        }
        return first;
    }

    static void require(bool holds, const char *otherwise) {
        if (!holds) std::fprintf(stderr, "%s\n", otherwise), std::abort();
    }
};

#ifdef LIBFUZZER

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static Decoder ragged(RAGGED), wide(WIDE);
    Decoder &decoder = size > ragged.plan.records_bytes ? wide : ragged;
    Bytes records(decoder.plan.records_bytes);
    std::copy(data, data + std::min(size, records.size()), records.begin());
    decoder.decode(records);
    return 0;
}

#else

static uint64_t state = 1;
static uint64_t draw(uint64_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
}

int main(int argc, char **argv) {
    Decoder ragged(RAGGED), wide(WIDE);
    std::vector<Bytes> corpus[2];
    long counted[2] = {};
    for (int i = 2; i < argc; ++i) {
        std::ifstream file(argv[i], std::ios::binary);
        const Bytes records{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
        const bool is_wide = records.size() == wide.plan.records_bytes;
        if (!is_wide && records.size() != ragged.plan.records_bytes)
            return std::fprintf(stderr, "%s is of another layout\n", argv[i]), 2;
        ++counted[(is_wide ? wide : ragged).decode(records) == MURMUR_OK ? 0 : 1];
        corpus[is_wide].push_back(records);
    }
    for (long number = std::atol(argv[1]); number > 0; --number) {
        const bool is_wide = draw(2);
        const std::vector<Bytes> &given = corpus[is_wide];
        Bytes records = given[draw(given.size())];
        const uint64_t at = records.size();
        switch (draw(4)) {
            case 0:
                for (uint64_t i = draw(4) + 1; i > 0; --i) records[draw(at)] ^= 1u << draw(8);
                break;
            case 1: {
                const Bytes &other = given[draw(given.size())];
                const uint64_t from = draw(at), to = from + draw(at - from) + 1;
                std::copy(other.begin() + from, other.begin() + to, records.begin() + from);
                break;
            }
            case 2:
                for (uint64_t from = draw(at), i = from; i < at && i < from + 1 + draw(90); ++i) records[i] = draw(256);
                break;
            default: {  // an index moves on: a one of an upper part changes places with a zero
                const uint64_t bit = (is_wide ? 8 * 82 * draw(6) : 0) + draw(127);
                const uint8_t left = records[bit / 8] >> bit % 8 & 1;
                const uint8_t right = records[(bit + 1) / 8] >> (bit + 1) % 8 & 1;
                if (left != right) records[bit / 8] ^= 1u << bit % 8, records[(bit + 1) / 8] ^= 1u << (bit + 1) % 8;
            }
        }
        ++counted[(is_wide ? wide : ragged).decode(records) == MURMUR_OK ? 0 : 1];
    }
    std::printf("%ld %ld\n", counted[0], counted[1]);
}

#endif
