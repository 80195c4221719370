// Mutates records of the corpus and decodes them, in memory of exactly their size: built with AddressSanitizer, it stops
// at the first access outside. What one instruction set accepts, all must, and then it is applied too.
// Arguments: number of cases, then corpus files. Prints how many were accepted and refused.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <vector>

#include "murmur_codec.h"

// The layout of tests/sparseloco/test_wire.py, FUZZ_SHAPES: matrix (70, 67), scalar (), vector (5,), k = 64.
static const uint64_t ELEMENTS[3] = {70 * 67, 1, 5};
static const murmur_region REGIONS[6] = {
    {0, 0, 0, 67, 1, 1, 64, 64, 64, 0, 87},     {0, 1, 64, 67, 1, 1, 64, 3, 3, 82, 87},
    {0, 2, 64 * 67, 67, 1, 1, 6, 64, 6, 87, 0}, {0, 3, 64 * 67 + 64, 67, 1, 1, 6, 3, 1, 0, 0},
    {1, 4, 0, 1, 1, 1, 1, 1, 1, 0, 0},          {2, 5, 0, 5, 1, 1, 1, 5, 1, 0, 0},
};

typedef std::vector<uint8_t> Bytes;

static uint64_t state = 1;
static uint64_t draw(uint64_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
}

int main(int argc, char **argv) {
    std::vector<Bytes> corpus;
    for (int i = 2; i < argc; ++i) {
        std::ifstream file(argv[i], std::ios::binary);
        corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
    // Sizes of records follow from the library itself: each region begins where the one before it ends.
    murmur_region regions[6];
    std::memcpy(regions, REGIONS, sizeof regions);
    uint64_t at = 0;
    void *scratch = std::aligned_alloc(64, murmur_scratch_bytes());
    murmur_plan plan{regions, 6, ELEMENTS, 3, corpus[0].size(), scratch, murmur_scratch_bytes(), 1, 0};
    for (uint64_t i = 0; i < 6; ++i) {
        regions[i].record = at;
        plan.num_regions = i + 1;
        Bytes none(4096);
        for (plan.records_bytes = at + 1;; ++plan.records_bytes) {  // the smallest that is not refused as too small
            uint64_t counts[3 * 256] = {}, fault;
            if (murmur_validate(&plan, none.data(), counts, &fault) != MURMUR_BAD_PLAN) break;
        }
        at = plan.records_bytes;
    }
    if (at != corpus[0].size()) return std::fprintf(stderr, "the corpus has another layout\n"), 2;
    plan.records_bytes = at;

    long accepted = 0, refused = 0;
    for (long number = std::atol(argv[1]); number > 0; --number) {
        Bytes records = corpus[draw(corpus.size())];
        switch (draw(4)) {
            case 0:
                for (uint64_t i = draw(4) + 1; i > 0; --i) records[draw(at)] ^= 1u << draw(8);
                break;
            case 1: {
                const Bytes &other = corpus[draw(corpus.size())];
                const uint64_t from = draw(at), to = from + draw(at - from) + 1;
                std::copy(other.begin() + from, other.begin() + to, records.begin() + from);
                break;
            }
            case 2:
                for (uint64_t from = draw(at), i = from; i < at && i < from + 1 + draw(90); ++i) records[i] = draw(256);
                break;
            default: {  // an index moves on: a one of the upper part changes places with a zero
                const uint64_t bit = draw(127);
                const uint8_t left = records[bit / 8] >> bit % 8 & 1;
                const uint8_t right = records[(bit + 1) / 8] >> (bit + 1) % 8 & 1;
                if (left != right) records[bit / 8] ^= 1u << bit % 8, records[(bit + 1) / 8] ^= 1u << (bit + 1) % 8;
            }
        }
        records.shrink_to_fit();
        int first = -1;
        for (plan.isa = 0; plan.isa < 3; ++plan.isa) {
            if (!murmur_supports(plan.isa)) continue;
            uint64_t counts[3 * 256] = {}, fault;
            const int status = murmur_validate(&plan, records.data(), counts, &fault);
            if (first < 0) first = status;
            if (status != first) return std::fprintf(stderr, "instruction sets differ: %d %d\n", first, status), 1;
            std::vector<float> theta[3];
            float *out[3];
            for (int i = 0; i < 3; ++i) theta[i].resize(ELEMENTS[i]), out[i] = theta[i].data();
            const uint8_t *one = records.data();
            const float weights[3] = {1, 1, 1};
            const float *before[3] = {out[0], out[1], out[2]};
            if (murmur_aggregate(&plan, &one, 1, weights, number % 2, before, out) != status)
                return std::fprintf(stderr, "aggregate and validate differ\n"), 1;
        }
        ++(first == MURMUR_OK ? accepted : refused);
    }
    std::printf("%ld %ld\n", accepted, refused);
    std::free(scratch);
}
