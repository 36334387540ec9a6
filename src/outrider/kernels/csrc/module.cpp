// Python's view: `_native.pyi` beside the package documents every name here.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "arrays.hpp"
#include "decoder.hpp"
#include "levels.hpp"
#include "sources.hpp"
#include "spire_module.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace outrider;

namespace {

using Bias = std::optional<Floats>;
using FloatArray2 = nb::ndarray<nb::numpy, float, nb::ndim<2>>;

template <class T>
T one_of(const char* what, const std::string& word, std::vector<std::pair<const char*, T>> known) {
    for (const auto& [name, value] : known)
        if (word == name) return value;
    refuse(std::string(what) + " '" + word + "' is unknown");
}

Gate gate_named(const std::string& word) {
    return one_of<Gate>("gate", word, {{"", Gate::none}, {"silu", Gate::silu}, {"gelu_tanh", Gate::gelu_tanh}});
}

InputKind activations_named(const std::string& word, const Level& level) {
    const InputKind bf16 = level.bf16_inputs ? InputKind::bf16 : InputKind::f32_rounded;
    return one_of<InputKind>("activations", word,
                             {{"float32", InputKind::f32}, {"bfloat16", bf16}, {"int8", InputKind::i8}});
}

MatrixShape shape_of(Format format, InputKind inputs_as, const std::string& gate) {
    MatrixShape shape;
    shape.format = format;
    shape.inputs_as = inputs_as;
    shape.gate = gate_named(gate);
    return shape;
}

MatrixPtr build(std::shared_ptr<Pool> pool, const MatrixShape& shape, const Source& source, const float* scales,
                const Bias& bias) {
    if (shape.rows < 1 || shape.inputs < 1) refuse("a matrix needs at least one row and one input");
    if (shape.gate != Gate::none && shape.rows % 2) refuse("a gated matrix needs as many rows for up as for the gate");
    if (bias) need_shape("bias_O", *bias, {size_t(shape.rows)});
    const float* bias_values = bias ? bias->data() : nullptr;
    nb::gil_scoped_release release;
    return std::make_shared<Matrix>(std::move(pool), shape, source, scales, bias_values);
}

MatrixPtr dense_f32(std::shared_ptr<Pool> pool, Array<float, 2> weight, Bias bias, const std::string& gate) {
    MatrixShape shape = shape_of(Format::f32, InputKind::f32, gate);
    shape.rows = size_of(weight, 0);
    shape.inputs = size_of(weight, 1);
    return build(std::move(pool), shape, FloatSource(weight.data(), shape.inputs), nullptr, bias);
}

MatrixPtr dense_bf16(std::shared_ptr<Pool> pool, Array<uint16_t, 2> weight, Bias bias, const std::string& gate) {
    MatrixShape shape = shape_of(Format::bf16, activations_named("bfloat16", pool->level()), gate);
    shape.rows = size_of(weight, 0);
    shape.inputs = size_of(weight, 1);
    return build(std::move(pool), shape, Bf16Source(weight.data(), shape.inputs), nullptr, bias);
}

MatrixPtr quantised(std::shared_ptr<Pool> pool, Array<float, 2> weight, Bias bias, int group,
                    const std::string& activations, const std::string& gate) {
    if (group != 0 && group != kGroup) refuse("group must be 0 (a scale by output) or 32");
    MatrixShape shape = shape_of(Format::q8, activations_named(activations, pool->level()), gate);
    shape.grouped = group != 0;
    shape.zero_point = 128;
    shape.rows = size_of(weight, 0);
    shape.inputs = size_of(weight, 1);
    const Int8Source source(weight.data(), shape.rows, shape.inputs, shape.grouped);
    return build(std::move(pool), shape, source, source.scales(), bias);
}

MatrixPtr gguf(std::shared_ptr<Pool> pool, Array<uint8_t, 2> blocks, Bias bias, const std::string& kind,
               const std::string& activations, const std::string& gate) {
    const BlockKind layout = one_of<BlockKind>(
        "kind", kind, {{"Q8_0", BlockKind::q8_0}, {"Q4_0", BlockKind::q4_0}, {"Q4_1", BlockKind::q4_1}});
    const int bytes = size_of(blocks, 1), block = bytes_of_block(layout);
    if (bytes % block)
        refuse("a row of " + std::to_string(bytes) + " bytes is not whole blocks of " + std::to_string(block));
    const Format format = layout == BlockKind::q8_0 ? Format::q8 : Format::q4;
    MatrixShape shape = shape_of(format, activations_named(activations, pool->level()), gate);
    shape.grouped = true;
    shape.minimums = layout == BlockKind::q4_1;
    shape.zero_point = layout == BlockKind::q8_0 ? 128 : layout == BlockKind::q4_0 ? 8 : 0;
    shape.rows = size_of(blocks, 0);
    shape.inputs = bytes / block * kGroup;
    const BlockSource source(blocks.data(), bytes, layout);
    // Sign and magnitude have no -128; wide products of the same rounded inputs do.
    if (shape.inputs_as == InputKind::bf16 && source.has_code(-128, shape.rows, shape.inputs))
        shape.inputs_as = InputKind::f32_rounded;
    return build(std::move(pool), shape, source, nullptr, bias);
}

FloatArray2 array_of(int rows, int columns, std::unique_ptr<float[]> values) {
    float* data = values.release();
    nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<float*>(p); });
    return FloatArray2(data, {size_t(rows), size_t(columns)}, owner);
}

FloatArray2 multiply(const Matrix& matrix, Array<float, 2> x) {
    if (size_of(x, 1) != matrix.inputs())
        refuse("x_NI has rows of " + std::to_string(x.shape(1)) + ", needed are " + std::to_string(matrix.inputs()));
    const int rows = size_of(x, 0);
    auto out = std::make_unique<float[]>(size_t(rows) * matrix.outputs());
    {
        nb::gil_scoped_release release;
        matrix.multiply(x.data(), rows, out.get());
    }
    return array_of(rows, matrix.outputs(), std::move(out));
}

FloatArray2 rows_of(const Matrix& matrix, Array<int32_t, 1> indices) {
    if (matrix.packed().gate != Gate::none) refuse("a gated matrix has no rows to look up");
    const int count = size_of(indices, 0);
    auto out = std::make_unique<float[]>(size_t(count) * matrix.inputs());
    for (int i = 0; i < count; ++i) {
        const int index = indices.data()[i];
        if (index < 0 || index >= matrix.outputs())
            refuse("row " + std::to_string(index) + " is not in 0.." + std::to_string(matrix.outputs() - 1));
        matrix.read_row(index, out.get() + size_t(i) * matrix.inputs());
    }
    return array_of(count, matrix.inputs(), std::move(out));
}

void make_decoder(Decoder* self, std::shared_ptr<Pool> pool, int vocab_size, int hidden_size, int num_heads,
                  int num_kv_heads, int head_dim, int num_layers, float norm_eps, float attention_scale, int window,
                  float embedding_scale, int slots, int positions, const std::string& kv_dtype, MatrixPtr embedding,
                  MatrixPtr head, Floats norm, Array<float, 2> cosines, Array<float, 2> sines,
                  Array<float, 2> local_cosines, Array<float, 2> local_sines) {
    for (int size : {vocab_size, hidden_size, num_heads, num_kv_heads, head_dim, num_layers, slots, positions})
        if (size < 1) refuse("sizes must be 1 or more");
    if (num_heads % num_kv_heads || head_dim % 2)
        refuse("heads must divide evenly among KV heads, and head_dim be even");
    if (window < 0) refuse("window must be 0 (none) or more");
    const bool bf16 = one_of<bool>("kv_dtype", kv_dtype, {{"float32", false}, {"bfloat16", true}});
    const DecoderShape shape{vocab_size,      hidden_size,     num_heads, num_kv_heads, head_dim,  num_layers, norm_eps,
                             attention_scale, embedding_scale, window,    slots,        positions, bf16};
    need_shape("norm_D", norm, {size_t(hidden_size)});
    new (self) Decoder(std::move(pool), shape, std::move(embedding), std::move(head), norm.data(),
                       rotations("cos_SP and sin_SP", cosines, sines, positions, head_dim),
                       rotations("local_cos_SP and local_sin_SP", local_cosines, local_sines, positions, head_dim));
}

PaddedVector optional_vector(const char* name, const Bias& values, int size) {
    if (!values) return {};
    return vector_of(name, *values, size);
}

void add_layer(Decoder& decoder, bool local, Floats input_norm, MatrixPtr qkv, Bias q_norm, Bias k_norm, MatrixPtr out,
               Bias post_attention_norm, Floats mlp_norm, MatrixPtr gate_up, MatrixPtr down, Bias post_mlp_norm) {
    const int width = decoder.shape().hidden_size, dim = decoder.shape().head_dim;
    Layer layer;
    layer.local = local;
    layer.input_norm = vector_of("input_norm_D", input_norm, width);
    layer.q_norm = optional_vector("q_norm", q_norm, dim);
    layer.k_norm = optional_vector("k_norm", k_norm, dim);
    layer.post_attention_norm = optional_vector("post_attention_norm_D", post_attention_norm, width);
    layer.mlp_norm = vector_of("mlp_norm_D", mlp_norm, width);
    layer.post_mlp_norm = optional_vector("post_mlp_norm_D", post_mlp_norm, width);
    layer.qkv = std::move(qkv);
    layer.out = std::move(out);
    layer.gate_up = std::move(gate_up);
    layer.down = std::move(down);
    decoder.add_layer(std::move(layer));
}

void step(Decoder& decoder, Ints tokens, Ints slots, Ints starts, Ints counts, Ints wanted, Output<float, 2> logits,
          std::optional<Output<float, 2>> hidden, std::optional<Ints> layers, std::optional<Output<float, 3>> states,
          std::optional<Ints> parents) {
    const size_t width = decoder.shape().hidden_size, feeds = slots.shape(0), asked = wanted.shape(0);
    need_shape("starts_F", starts, {feeds});
    need_shape("counts_F", counts, {feeds});
    need_shape("logits_MV", logits, {asked, size_t(decoder.shape().vocab_size)});
    if (hidden) need_shape("hidden_MD", *hidden, {asked, width});
    if (layers.has_value() != states.has_value()) refuse("layers_L and states_LND go together");
    if (states) need_shape("states_LND", *states, {layers->shape(0), tokens.shape(0), width});
    if (parents) need_shape("parents_N", *parents, {tokens.shape(0)});
    const std::vector<int> token_list = copied(tokens), slot_list = copied(slots), start_list = copied(starts),
                           count_list = copied(counts), wanted_list = copied(wanted),
                           parent_list = parents ? copied(*parents) : std::vector<int>(),
                           layer_list = layers ? copied(*layers) : std::vector<int>();
    Batch batch{};
    batch.rows = size_of(tokens, 0);
    batch.feeds = size_of(slots, 0);
    batch.wanted = size_of(wanted, 0);
    batch.tokens = token_list.data();
    batch.slots = slot_list.data();
    batch.starts = start_list.data();
    batch.counts = count_list.data();
    batch.wanted_rows = wanted_list.data();
    batch.parents = parents ? parent_list.data() : nullptr;
    batch.logits = logits.data();
    batch.hidden = hidden ? hidden->data() : nullptr;
    batch.layers = int(layer_list.size());
    batch.layer_list = layer_list.data();
    batch.states = states ? states->data() : nullptr;
    nb::gil_scoped_release release;
    decoder.step(batch);
}

void move(Decoder& decoder, int slot, Ints sources, int target) {
    const int count = size_of(sources, 0);
    nb::gil_scoped_release release;
    decoder.move(slot, sources.data(), count, target);
}

std::vector<std::string> level_names() {
    std::vector<std::string> names;
    for (const Level* level : available_levels()) names.emplace_back(level->name);
    return names;
}

void make_pool(Pool* self, int threads, const std::string& level) {
    if (threads < 1 || threads > 1024) refuse("threads must be 1 to 1024");
    new (self) Pool(threads, level_named(level));
}

}  // namespace

NB_MODULE(_native, m) {
    // A model that is alive when Python ends, in a global variable, is no fault of its user's.
    nb::set_leak_warnings(false);
    m.def("levels", &level_names);
    nb::class_<Pool>(m, "Pool")
        .def("__init__", &make_pool, "threads"_a, "level"_a)
        .def_prop_ro("threads", &Pool::threads)
        .def_prop_ro("level", [](const Pool& pool) { return std::string(pool.level().name); });
    nb::class_<Matrix>(m, "Matrix")
        .def_static("dense", &dense_f32, "pool"_a, "weight_OI"_a.noconvert(), "bias_O"_a.noconvert() = nb::none(),
                    nb::kw_only(), "gate"_a = "")
        .def_static("dense", &dense_bf16, "pool"_a, "weight_OI"_a.noconvert(), "bias_O"_a.noconvert() = nb::none(),
                    nb::kw_only(), "gate"_a = "")
        .def_static("int8", &quantised, "pool"_a, "weight_OI"_a.noconvert(), "bias_O"_a.noconvert() = nb::none(),
                    nb::kw_only(), "group"_a, "activations"_a, "gate"_a = "")
        .def_static("gguf", &gguf, "pool"_a, "blocks"_a.noconvert(), "bias_O"_a.noconvert() = nb::none(), nb::kw_only(),
                    "kind"_a, "activations"_a, "gate"_a = "")
        .def_prop_ro("outputs", &Matrix::outputs)
        .def_prop_ro("inputs", &Matrix::inputs)
        .def_prop_ro("nbytes", &Matrix::nbytes)
        .def("multiply", &multiply, "x_NI"_a.noconvert())
        .def("rows", &rows_of, "indices"_a.noconvert());
    nb::class_<Decoder>(m, "Decoder")
        .def("__init__", &make_decoder, "pool"_a, nb::kw_only(), "vocab_size"_a, "hidden_size"_a, "num_heads"_a,
             "num_kv_heads"_a, "head_dim"_a, "num_layers"_a, "norm_eps"_a, "attention_scale"_a, "window"_a,
             "embedding_scale"_a, "slots"_a, "positions"_a, "kv_dtype"_a, "embedding"_a, "head"_a,
             "norm_D"_a.noconvert(), "cos_SP"_a.noconvert(), "sin_SP"_a.noconvert(), "local_cos_SP"_a.noconvert(),
             "local_sin_SP"_a.noconvert())
        .def("add_layer", &add_layer, nb::kw_only(), "local"_a, "input_norm_D"_a.noconvert(), "qkv"_a,
             "q_norm"_a.noconvert().none(), "k_norm"_a.noconvert().none(), "out"_a,
             "post_attention_norm_D"_a.noconvert().none(), "mlp_norm_D"_a.noconvert(), "gate_up"_a, "down"_a,
             "post_mlp_norm_D"_a.noconvert().none())
        .def_prop_ro("nbytes", &Decoder::nbytes)
        .def("open", &Decoder::open, "slot"_a, nb::call_guard<nb::gil_scoped_release>())
        .def("close", &Decoder::close, "slot"_a, nb::call_guard<nb::gil_scoped_release>())
        .def("step", &step, "tokens_N"_a.noconvert(), "slots_F"_a.noconvert(), "starts_F"_a.noconvert(),
             "counts_F"_a.noconvert(), "wanted_M"_a.noconvert(), "logits_MV"_a.noconvert(), nb::kw_only(),
             "hidden_MD"_a.noconvert() = nb::none(), "layers_L"_a.noconvert() = nb::none(),
             "states_LND"_a.noconvert() = nb::none(), "parents_N"_a.noconvert() = nb::none())
        .def("move", &move, "slot"_a, "sources"_a.noconvert(), "target"_a);
    bind_spire(m);
}
