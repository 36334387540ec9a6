// A product of a few rows or many with a run of blocks: weights stream once, rows pass over each panel while it is in
// cache.
#pragma once

// A panel that several passes read fits the first cache beside their inputs; one that is read once need not.
constexpr size_t kPanelBytes = 128 << 10, kPanelBytesOfMany = 24 << 10;

// Sums of one vector of outputs, scaled where codes are integers, with the bias.
static inline F finished(const Packed& m, const Inputs& x, int row, const float* acc, int vector) {
    F value = load(acc);
    if (m.format == Format::q8 && !m.grouped) {
        F scale = load(m.scales + size_t(vector) * kLanes);
        if (m.inputs_as == InputKind::i8) {
            const I shift = set1_i(int(bits_of(x.sum[row])) * m.zero_point);
            value = to_float(sub_i(load_i(acc), shift));
            scale = mul(scale, set1(x.scale[row]));
        }
        value = mul(value, scale);
    }
    return m.bias == nullptr ? value : add(value, load(m.bias + size_t(vector) * kLanes));
}

static inline void deliver(const Sink& sink, int row, int column, int outputs, F value) {
    char* at = sink.out + row * sink.stride + column * element_bytes(sink.as);
    float* out = reinterpret_cast<float*>(at);
    if (sink.as != InputKind::f32) {
        // Inputs of another product: their rows have room for whole vectors.
        alignas(64) float lanes[kLanes];
        store(lanes, value);
        round_row(sink.as, lanes, kLanes, at);
    } else if (column + kLanes <= outputs) {
        store(out, sink.add ? add(load(out), value) : value);
    } else {
        alignas(64) float lanes[kLanes];
        store(lanes, value);
        for (int i = 0; i < outputs - column; ++i) out[i] = sink.add ? out[i] + lanes[i] : lanes[i];
    }
}

static void deliver_block(const Packed& m, const Inputs& x, int rows, const Block& block, const float* acc,
                          const Sink& sink) {
    const int width = block.vectors * kLanes;
    for (int row = 0; row < rows; ++row) {
        const float* sums = acc + size_t(row) * width;
        for (int v = 0; v < block.vectors; ++v) {
            const int vector = block.first_vector + v;
            F value = finished(m, x, row, sums + v * kLanes, vector);
            if (m.gate == Gate::none) {
                deliver(sink, row, vector * kLanes, m.outputs, value);
            } else {
                // Vectors alternate: a gate's, then its up projection's.
                ++v;
                value = mul(activated(m.gate, value), finished(m, x, row, sums + v * kLanes, vector + 1));
                deliver(sink, row, vector / 2 * kLanes, m.outputs, value);
            }
        }
    }
}

// All rows over one panel; meanwhile the next panel, at `ahead`, is asked for, an equal part in each pass.
static void run_panel(const Packed& m, const Inputs& x, int rows, const Block& block, int from, int steps,
                      const char* ahead, float* acc) {
    const int most = most_rows(m.format), passes = (rows + most - 1) / most, width = block.vectors * kLanes;
    const size_t input_step = inputs_of_step(m) * element_bytes(m.inputs_as);
    const size_t step_bytes = block.vectors * m.vector_step;
    const int lines = int((step_bytes / 64 + passes - 1) / passes);
    int row = 0;
    for (int pass = 0; pass < passes; ++pass) {
        const int count = (rows - row + passes - pass - 1) / (passes - pass);
        Run run;
        run.weights = m.data + block.offset + from * step_bytes;
        run.steps = steps;
        run.x = x.data + row * x.stride + from * input_step;
        run.stride = x.stride;
        run.acc = acc + size_t(row) * width;
        run.acc_stride = width;
        run.ahead = ahead + size_t(pass) * steps * lines * 64;
        if (passes == 1) run.ahead = run.weights + (count <= 3 ? kNear : kFar);
        run.ahead_lines = pass * lines < int(step_bytes / 64) ? lines : 0;
        run.matrix = &m;
        run.groups = x.groups;
        run.scale = x.scale + size_t(row) * x.groups + (m.grouped ? from : 0);
        run.sum = x.sum + size_t(row) * x.groups + (m.grouped ? from : 0);
        find_tile(m, count, block.vectors)(run);
        row += count;
    }
}

// One block; `then` is what this thread will most likely read after it.
static void multiply(const Packed& m, const Inputs& x, int rows, int b, const char* then, const Sink& sink,
                     float* acc) {
    const Block& block = m.blocks[b];
    const size_t step_bytes = block.vectors * m.vector_step;
    const size_t most = rows > most_rows(m.format) ? kPanelBytesOfMany : kPanelBytes;
    const int panels = int((step_bytes * m.steps + most - 1) / most);
    std::memset(acc, 0, size_t(rows) * block.vectors * kVector);
    int from = 0;
    for (int panel = 0; panel < panels; ++panel) {
        const int steps = (m.steps - from + panels - panel - 1) / (panels - panel);
        const char* next = m.data + block.offset + (from + steps) * step_bytes;
        run_panel(m, x, rows, block, from, steps, panel + 1 < panels ? next : then, acc);
        from += steps;
    }
    if (then != m.data + block.offset + m.steps * step_bytes)
        for (int i = 0; i < kNear; i += 64) prefetch(then + i);
    deliver_block(m, x, rows, block, acc, sink);
}
