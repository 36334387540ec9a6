// Attention over blocks of keys at fixed positions. A query's bits depend on its own keys only: every block is scored,
// exponentiated and summed alone, and blocks are merged in order (Milakov & Gimelshein 2018).
//
// Keys lie as the weights of a product do (kLanes * kWide keys side by side for each dimension), and so do values
// (dimensions side by side for each key), so both products are tiles. bfloat16 comes in pairs: of dimensions for keys,
// of keys for values.
#pragma once

constexpr int kKeysWide = kWide * kLanes;
constexpr InputKind kBf16Kind = kBf16Inputs ? InputKind::bf16 : InputKind::f32_rounded;

static inline int padded_width(int head_dim) { return round_up(head_dim, kNarrow * kLanes); }
static inline int dims_of_block(int left) { return left >= kKeysWide ? kKeysWide : kNarrow * kLanes; }

// A query in the form that products read; `head` is padded with zeros to whole vectors.
static void store_query(const Cache& cache, const float* head, char* out) {
    round_row(cache.bf16 ? kBf16Kind : InputKind::f32, head, round_up(cache.head_dim, kLanes), out);
}

static inline size_t key_offset(const Cache& cache, int position, int d) {
    const size_t element = cache.bf16 ? 2 : 4, block = size_t(position / kKeyBlock) * cache.block_stride;
    const size_t part = size_t(position % kKeyBlock / kKeysWide) * kKeysWide * cache.head_dim * element;
    const int lane = position % kKeysWide;
    return block + part +
           (cache.bf16 ? (size_t(d / 2) * kKeysWide + lane) * 4 + (d % 2) * 2 : (size_t(d) * kKeysWide + lane) * 4);
}

// Where a block's values of the dimensions from `first` on begin.
static inline size_t value_plane(const Cache& cache, int block, int first) {
    return block * cache.block_stride + size_t(first) * kKeyBlock * (cache.bf16 ? 2 : 4);
}

static inline size_t value_offset(const Cache& cache, int position, int d) {
    int first = d / kKeysWide * kKeysWide;
    const int width = dims_of_block(padded_width(cache.head_dim) - first);
    first += (d - first) / width * width;
    const size_t lane = d - first, row = position % kKeyBlock;
    return value_plane(cache, position / kKeyBlock, first) +
           (cache.bf16 ? (row / 2 * width + lane) * 4 + row % 2 * 2 : (row * width + lane) * 4);
}

// A position's key and value, both padded with zeros to whole vectors. Every pair of dimensions of the key lies on a
// cache line of its own.
static void append(const Cache& cache, int position, const float* key, const float* value) {
    const int padded = padded_width(cache.head_dim);
    char* keys = cache.keys + key_offset(cache, position, 0);
    char* values = cache.values + value_offset(cache, position, 0);
    uint16_t narrow[2 * kPadding];
    for (int first = 0; first < padded;) {
        const int width = dims_of_block(padded - first),
                  inside = cache.head_dim - first < width ? cache.head_dim - first : width;
        if (cache.bf16) {
            for (int i = 0; i < width; i += kLanes) {
                store_low16(narrow + i, rounded_bits(load(key + first + i)));
                store_low16(narrow + kPadding + i, rounded_bits(load(value + first + i)));
            }
            for (int d = 0; d < inside; d += 2) std::memcpy(keys + (first + d) / 2 * kKeysWide * 4, narrow + d, 4);
            for (int d = 0; d < width; ++d) std::memcpy(values + d * 4, narrow + kPadding + d, 2);
        } else {
            for (int d = 0; d < inside; ++d) std::memcpy(keys + size_t(first + d) * kKeysWide * 4, key + first + d, 4);
            std::memcpy(values, value + first, width * 4);
        }
        first += width;
        if (first < padded) values = cache.values + value_offset(cache, position, first);
    }
}

// Asks for the beginning of a block's keys, which attention will read.
static void expect_block(const Cache& cache, int block) {
    const char* keys = cache.keys + key_offset(cache, block * kKeyBlock, 0);
    for (int i = 0; i < kNear; i += 64) prefetch(keys + i);
}

// Asks for the lines that `append` will write.
static void expect(const Cache& cache, int position) {
    const char* keys = cache.keys + key_offset(cache, position, 0);
    const int lines = cache.bf16 ? cache.head_dim / 2 : cache.head_dim;
    for (int i = 0; i < lines; ++i) __builtin_prefetch(keys + size_t(i) * kKeysWide * 4, 1);
    for (int d = 0; d < cache.head_dim; d += 16) __builtin_prefetch(cache.values + value_offset(cache, position, d), 1);
}

// One position's key and value, also into another cache of the same shape.
static void copy_position(const Cache& from, int source, const Cache& to, int target) {
    const size_t size = from.bf16 ? 2 : 4;
    for (int d = 0; d < from.head_dim; ++d) {
        std::memcpy(to.keys + key_offset(to, target, d), from.keys + key_offset(from, source, d), size);
        std::memcpy(to.values + value_offset(to, target, d), from.values + value_offset(from, source, d), size);
    }
}

// Rotates pairs (i, i + half) and scales (RoFormer, Su et al. 2021). Products are not fused, so that whole vectors and
// what is left over round alike.
static void rotate(float* head, const float* cosines, const float* sines, int half, float scale) {
    int i = 0;
    for (; i + kLanes <= half; i += kLanes) {
        const F x = load(head + i), y = load(head + half + i), c = load(cosines + i), s = load(sines + i);
        store(head + i, mul(sub(mul(x, c), mul(y, s)), set1(scale)));
        store(head + half + i, mul(add(mul(y, c), mul(x, s)), set1(scale)));
    }
    for (; i < half; ++i) {
        const float x = head[i], y = head[i + half];
        head[i] = (x * cosines[i] - y * sines[i]) * scale;
        head[i + half] = (y * cosines[i] + x * sines[i]) * scale;
    }
}

static void run_tiles(bool bf16, const Run& run, int rows, int vectors) {
    const int passes = (rows + kMaxRows - 1) / kMaxRows;
    for (int row = 0, pass = 0; pass < passes; ++pass) {
        const int count = (rows - row + passes - pass - 1) / (passes - pass);
        Run part = run;
        part.x += row * run.stride;
        part.acc += size_t(row) * run.acc_stride;
        if (pass > 0) part.ahead_lines = 0;
        (bf16 ? dense_tile<Bf16Kind>(count, vectors) : dense_tile<F32Kind>(count, vectors))(part);
        row += count;
    }
}

// Scores of keys [low, high) of the block for every query.
static void score_keys(const Attend& a, int low, int high, float* scores) {
    const Cache& c = a.cache;
    std::memset(scores, 0, size_t(a.rows) * a.group * kKeyBlock * 4);
    for (int first = low / kKeysWide * kKeysWide; first < high; first += kKeysWide) {
        Run run{};
        run.weights = c.keys + key_offset(c, a.block * kKeyBlock + first, 0);
        run.steps = c.bf16 ? c.head_dim / 2 : c.head_dim;
        run.x = a.query;
        run.stride = a.query_stride;
        run.acc = scores + first;
        run.acc_stride = kKeyBlock;
        run.ahead = run.weights + kNear;
        run.ahead_lines = int(kWide * kVector / 64);
        run_tiles(c.bf16, run, a.rows * a.group, kWide);
    }
}

// Weights of keys [low, high) from their scores, their maximum and sum; vectors of keys that are not seen are left
// alone.
static void soften(float* scores, int low, int high, char* weights, bool bf16, float* state) {
    const int first = low / kLanes * kLanes, last = round_up(high, kLanes);
    const F nothing = set1(-__builtin_inff());
    F top = nothing;
    for (int i = first; i < last; i += kLanes) {
        const F seen = keep(load(scores + i), low - i, high - i, nothing);
        store(scores + i, seen);
        top = max(seen, top);
    }
    const float most = highest(top);
    F sum = zero();
    for (int i = first; i < last; i += kLanes) {
        const F weight = keep(exponential(sub(load(scores + i), set1(most))), low - i, high - i, zero());
        store(scores + i, weight);
        sum = add(sum, weight);
    }
    state[0] = most;
    state[1] = total(sum);
    const InputKind kind = bf16 ? kBf16Kind : InputKind::f32;
    round_row(kind, scores + first, last - first, weights + first * element_bytes(kind));
}

// A run of dimensions of a block's values. A unit is what one step of a product reads: a key, or a pair of keys.
struct Values {
    const Attend& a;
    const char* weights;
    const char* at;
    int first, width;

    int keys() const { return a.cache.bf16 ? 2 : 1; }
    int element() const { return a.cache.bf16 && kBf16Inputs ? 2 : 4; }

    // Adds units [from, to), which lie at `values`, for `rows` rows.
    void add(int row, int rows, int from, int to, const char* values) const {
        if (from >= to) return;
        const int query = row * a.group, stride = kLanes + padded_width(a.cache.head_dim);
        Run run{};
        run.weights = values;
        run.steps = to - from;
        run.x = weights + size_t(query) * kKeyBlock * element() + size_t(from) * keys() * element();
        run.stride = kKeyBlock * element();
        run.acc = a.state + query * stride + kLanes + first;
        run.acc_stride = stride;
        if (to - from > 8) {
            run.ahead = values + kNear;
            run.ahead_lines = width / 16;
        }
        run_tiles(a.cache.bf16, run, rows * a.group, width / kLanes);
    }

    void add_whole(int row, int rows, int from, int to) const {
        add(row, rows, from, to, at + size_t(from) * width * 4);
    }

    // Of a pair that is seen by half, the other half is left out: a weight of zero would not hide what is not finite.
    void add_half(int row, int unit) const {
        int32_t pairs[kKeysWide];
        std::memcpy(pairs, at + size_t(unit) * width * 4, width * 4);
        const uint32_t seen = (unit * 2 >= a.low[row] ? 0xffffu : 0u) | (unit * 2 + 1 < a.high[row] ? 0xffff0000u : 0u);
        for (int lane = 0; lane < width; ++lane) pairs[lane] = int32_t(uint32_t(pairs[lane]) & seen);
        add(row, 1, unit, unit + 1, reinterpret_cast<const char*>(pairs));
    }
};

// The weighted values, for every row in the order of its keys: those that come before what all rows see, what all see,
// and those after.
static void sum_values(const Values& v, int low, int high) {
    const Attend& a = v.a;
    const int keys = v.keys(), from = (low + keys - 1) / keys, to = high / keys > from ? high / keys : from;
    for (int row = 0; row < a.rows; ++row) {
        if (a.low[row] % keys) v.add_half(row, a.low[row] / keys);
        v.add_whole(row, 1, (a.low[row] + keys - 1) / keys, from < a.high[row] / keys ? from : a.high[row] / keys);
    }
    v.add_whole(0, a.rows, from, to);
    for (int row = 0; row < a.rows; ++row) {
        const int begin = (a.low[row] + keys - 1) / keys;
        v.add_whole(row, 1, to > begin ? to : begin, a.high[row] / keys);
        if (a.high[row] % keys && a.high[row] / keys >= begin) v.add_half(row, a.high[row] / keys);
    }
}

static void attend_block(const Attend& a) {
    const Cache& c = a.cache;
    const int padded = padded_width(c.head_dim), stride = kLanes + padded, queries = a.rows * a.group;
    float* scores = reinterpret_cast<float*>(a.scratch);
    char* weights = a.scratch + size_t(queries) * kKeyBlock * 4;
    const size_t weight_bytes = c.bf16 && kBf16Inputs ? 2 : 4;
    int low = a.low[0], high = a.high[0], least = low, most = high;
    for (int row = 1; row < a.rows; ++row) {
        low = a.low[row] > low ? a.low[row] : low;
        least = a.low[row] < least ? a.low[row] : least;
        high = a.high[row] < high ? a.high[row] : high;
        most = a.high[row] > most ? a.high[row] : most;
    }
    for (int i = 0; i < kNear; i += 64) prefetch(c.values + value_plane(c, a.block, 0) + i);
    score_keys(a, least, most, scores);
    for (int q = 0; q < queries; ++q) {
        const int row = q / a.group;
        soften(scores + q * kKeyBlock, a.low[row], a.high[row], weights + q * kKeyBlock * weight_bytes, c.bf16,
               a.state + q * stride);
        std::memset(a.state + q * stride + kLanes, 0, size_t(padded) * 4);
    }
    for (int first = 0; first < padded;) {
        const int width = dims_of_block(padded - first);
        sum_values({a, weights, c.values + value_plane(c, a.block, first), first, width}, low, high);
        first += width;
    }
}

// The state of two runs of keys, the earlier one in `state`.
static void merge(float* state, const float* part, int width) {
    const F old_top = set1(state[0]), part_top = set1(part[0]), top = max(part_top, old_top);
    const F old_scale = exponential(sub(old_top, top)), part_scale = exponential(sub(part_top, top));
    alignas(64) float lanes[kLanes];
    store(lanes, fma(set1(state[1]), old_scale, mul(set1(part[1]), part_scale)));
    for (int i = kLanes; i < kLanes + width; i += kLanes)
        store(state + i, fma(load(state + i), old_scale, mul(load(part + i), part_scale)));
    state[1] = lanes[0];
    store(lanes, top);
    state[0] = lanes[0];
}

static void finish(InputKind as, char* out, const float* state, int head_dim) {
    const size_t element = element_bytes(as);
    alignas(64) float lanes[kLanes];
    alignas(64) char rounded_lanes[kVector];
    for (int d = 0; d < head_dim; d += kLanes) {
        store(lanes, div(load(state + kLanes + d), set1(state[1])));
        round_row(as, lanes, kLanes, rounded_lanes);
        std::memcpy(out + d * element, rounded_lanes, (head_dim - d < kLanes ? head_dim - d : kLanes) * element);
    }
}
