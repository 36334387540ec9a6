// Attention over a list of remembered keys: short, and never in blocks, so all of a query's softmax is taken at once.
// Everything is summed in the order of the list.
#pragma once

// Scores of one key for each query of the group, into column `at`.
static inline void score_listed(const Listed& a, int at, int row) {
    const float* key = a.keys + a.entries[at] * a.stride;
    for (int g = 0; g < a.group; ++g) {
        const float* query = a.query + g * a.stride;
        F sum = zero();
        for (int d = 0; d < a.head_dim; d += kLanes) sum = fma(load(query + d), load(key + d), sum);
        a.scores[g * row + at] = total(sum);
    }
}

// Weights in place of `count` scores; returns their sum.
static float soften_listed(float* scores, int count) {
    const F nothing = set1(-__builtin_inff());
    F top = nothing, sum = zero();
    for (int i = 0; i < count; i += kLanes) top = max(keep(load(scores + i), 0, count - i, nothing), top);
    const F most = set1(highest(top));
    for (int i = 0; i < count; i += kLanes) {
        const F weight = keep(exponential(sub(load(scores + i), most)), 0, count - i, zero());
        store(scores + i, weight);
        sum = add(sum, weight);
    }
    return total(sum);
}

// `vectors` vectors of weighted values from dimension `first` on, over the sum of the weights.
template <int vectors>
static inline void sum_listed(const Listed& a, const float* weights, float sum, int first, float* out) {
    F acc[vectors];
    for (int v = 0; v < vectors; ++v) acc[v] = zero();
    for (int i = 0; i < a.count; ++i) {
        const F weight = set1(weights[i]);
        const float* value = a.values + a.entries[i] * a.stride + first;
        for (int v = 0; v < vectors; ++v) acc[v] = fma(weight, load(value + v * kLanes), acc[v]);
    }
    for (int v = 0; v < vectors; ++v) {
        // Another head follows; its beginning is not ours to write.
        alignas(64) float lanes[kLanes];
        store(lanes, div(acc[v], set1(sum)));
        const int d = first + v * kLanes, left = a.head_dim - d;
        std::memcpy(out + d, lanes, (left < kLanes ? left : kLanes) * sizeof(float));
    }
}

static void attend_listed(const Listed& a) {
    const int row = round_up(a.count, kPadding);
    for (int i = 0; i < a.count; ++i) score_listed(a, i, row);
    for (int g = 0; g < a.group; ++g) {
        float *weights = a.scores + g * row, *out = a.out + g * a.head_dim;
        const float sum = soften_listed(weights, a.count);
        int d = 0;
        for (; d + 4 * kLanes <= a.head_dim; d += 4 * kLanes) sum_listed<4>(a, weights, sum, d, out);
        for (; d < a.head_dim; d += kLanes) sum_listed<1>(a, weights, sum, d, out);
    }
}
